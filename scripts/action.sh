#!/usr/bin/env bash
# The GitHub Action's one step (action.yml gives the variables): run the checks, leave annotations,
# a step summary and report files, and exit with the worst of their codes.
set -uo pipefail

: "${CHECKPOINT:?the folder to check}" "${MTPCONV:=mtpconv}" "${CHECKS:=roundtrip gate}"
: "${REPORTS:=mtpconv-reports}" "${STRICT:=false}" "${ENGINE:=}" "${REFERENCE:=}" "${ALLOW:=}"

mkdir -p "$REPORTS" || exit 2
worst=0
for check in $CHECKS; do
  case $check in
    roundtrip) words=(roundtrip --check) ;;
    gate)
      words=(gate)
      [ -z "$ENGINE" ] || words+=(--for "$ENGINE")
      [ -z "$REFERENCE" ] || words+=(--reference "$REFERENCE")
      while IFS= read -r line; do
        [ -z "$line" ] || words+=(--allow "$line")
      done <<< "$ALLOW"
      ;;
    *)
      echo "::error title=mtpconv::checks knows roundtrip and gate only"
      exit 2
      ;;
  esac
  [ "$STRICT" != true ] || words+=(--strict)
  "$MTPCONV" "${words[@]}" --format github --report "$REPORTS/$check.json" \
    --report "$REPORTS/$check.xml" --html "$REPORTS/$check.html" -- "$CHECKPOINT"
  code=$?
  [ "$code" -le "$worst" ] || worst=$code
done

verdict=error
[ "$worst" != 0 ] || verdict=pass
[ "$worst" != 1 ] || verdict=fail
if [ -n "${GITHUB_OUTPUT:-}" ]; then
  printf 'verdict=%s\nreports=%s\n' "$verdict" "$REPORTS" >> "$GITHUB_OUTPUT"
fi
exit "$worst"
