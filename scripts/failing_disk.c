/* Preloaded into a process: the nth write, flush or read of a data file fails with an error.
 *
 *   FAIL_CALL=pwrite|fsync|preadv  FAIL_NTH=<n>  FAIL_ERRNO=<number>
 *
 * Calls are counted over all threads. Built and used by scripts/soak.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>

static atomic_long calls;

static int fails(const char *name) {
    const char *which = getenv("FAIL_CALL");
    if (!which || strcmp(which, name) != 0) return 0;
    if (atomic_fetch_add(&calls, 1) + 1 < atol(getenv("FAIL_NTH"))) return 0;
    errno = atoi(getenv("FAIL_ERRNO"));
    return 1;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
    static ssize_t (*right)(int, const void *, size_t, off_t);
    if (!right) right = dlsym(RTLD_NEXT, "pwrite64");
    return fails("pwrite") ? -1 : right(fd, data, size, at);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

int fsync(int fd) {
    static int (*right)(int);
    if (!right) right = dlsym(RTLD_NEXT, "fsync");
    return fails("fsync") ? -1 : right(fd);
}

ssize_t preadv64(int fd, const struct iovec *parts, int count, off_t at) {
    static ssize_t (*right)(int, const struct iovec *, int, off_t);
    if (!right) right = dlsym(RTLD_NEXT, "preadv64");
    return fails("preadv") ? -1 : right(fd, parts, count, at);
}
ssize_t preadv(int fd, const struct iovec *parts, int count, off_t at) {
    return preadv64(fd, parts, count, at);
}
