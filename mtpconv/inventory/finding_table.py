"""Every finding id the package can emit: severity, meaning, cost, and how to mend it.

The one place that documents ids: `mtpconv explain-finding ID` prints a row and `docs/findings.md`
is made from all of them (`python scripts/findings_page.py`). A test beside the inventory's reads
the package's source and asserts that this table lists exactly the ids used there.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["error", "stop", "warning", "info"]
"""A finding's severity; `stop` is an error that leaves no verdict (raised, exit 2)."""

EXITS: dict[Kind, str] = {
    "error": "exit 1",
    "stop": "could not check, exit 2",
    "warning": "exit 0, or 1 under --strict",
    "info": "exit 0",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One id: the kinds it comes in, what it means, what it costs the user, how to mend it."""

    id: str
    kinds: tuple[Kind, ...]
    means: str
    costs: str
    mend: str


_NOTHING = "Nothing; it is said so that you know."
_ROWS = (
    # --- config ---------------------------------------------------------------------------------
    Row(
        "config/bad-value", ("stop",),
        "A key of config.json holds a value of the wrong type or range.",
        "No shape can be derived from it, so nothing can be proven.",
        "Correct the key; the release's own config.json shows what belongs there.",
    ),
    Row(
        "config/changed", ("info",),
        "A key of config.json is written otherwise than in the source, because of what was asked.",
        "Nothing; each such key is listed, and every other byte is as it was.",
        "Nothing to mend.",
    ),
    Row(
        "config/corrupt", ("stop",),
        "config.json is not a JSON object.",
        "No program can load the checkpoint.",
        "Fetch the file again.",
    ),
    Row(
        "config/drift", ("error", "info"),
        "A key of config.json says something else than the other side's. Added keys and those no"
        " model reads are information.",
        "The weights are the same, the model that is built around them is not: a shorter context,"
        " another RoPE, other experts.",
        "Take the key's value from the release, or copy its config.json.",
    ),
    Row(
        "config/missing", ("stop",),
        "The folder has no config.json.",
        "The architecture, and with it every shape, is unknown.",
        "Point at the checkpoint folder itself, or fetch the file.",
    ),
    Row(
        "config/missing-key", ("stop",),
        "config.json lacks a key that the family's rules need.",
        "A size would have to be guessed, and a guess converts garbage without complaint.",
        "Add the key with the release's value.",
    ),
    Row(
        "config/rope-schema", ("stop",),
        "rope_theta/rope_scaling and rope_parameters are both there and contradict each other.",
        "Which one is used depends on the version of transformers: one side trains, the other "
        "serves another model.",
        "Keep the one the model was trained with.",
    ),
    Row(
        "config/unknown-family", ("stop",),
        "model_type is no family this package has rules for.",
        "Nothing can be converted or proven.",
        "See `mtpconv families`; adding one takes a table of rows (CONTRIBUTING.md).",
    ),
    # --- diff -----------------------------------------------------------------------------------
    Row(
        "diff/changed-groups", ("info",),
        "Which parts of a trained checkpoint hold other bytes than the base it began with.",
        "Nothing, if those are the parts that were meant to train; a head on this list that was"
        " frozen is a fault of the recipe.",
        "Compare the list with what was meant to be trained.",
    ),
    Row(
        "diff/frozen-moved", ("warning",),
        "The decoder is the base's bit for bit, but the embedding or the head is not.",
        "A run that was to train only the MTP layers also changed what the model itself says.",
        "Freeze it, or take the base's tensor.",
    ),
    Row(
        "diff/same-as-base", ("info",),
        "Every tensor of the trained checkpoint is the base's, bit for bit.",
        "If it was trained, the wrong checkpoint was exported.",
        "Check the path and the iteration.",
    ),
    # --- disk -----------------------------------------------------------------------------------
    Row(
        "disk/full", ("stop",),
        "The target disk is full, or has less room than the output needs.",
        "Nothing was published; what had been written is removed.",
        "Free some space, or write to another disk.",
    ),
    Row(
        "disk/io-error", ("stop",),
        "The operating system refused a write.",
        "Nothing was published.",
        "Look at the system's log; a network file system may be down.",
    ),
    Row(
        "disk/read-only", ("stop",),
        "The target folder cannot be written.",
        "Nothing was published.",
        "Write elsewhere, or change the permissions.",
    ),
    # --- dist: Megatron folders -----------------------------------------------------------------
    Row(
        "dist/incomplete", ("stop",),
        "A Megatron checkpoint lacks `.metadata`, a data file, or a part of a tensor.",
        "The save was killed or the copy is partial; a job would fail to resume from it.",
        "Name the iteration folder of a finished save, or copy the whole folder.",
    ),
    Row(
        "dist/kind", ("stop",),
        "The folder is a checkpoint of another kind: mp_rank_* folders, or keys that are not "
        "Megatron's.",
        "It cannot be read here.",
        "Load it in Megatron-LM and save it with --ckpt-format torch_dist.",
    ),
    Row(
        "dist/strided", ("stop",),
        "A stored tensor is not contiguous, or is cut along more axes than rows and columns.",
        "Its bytes cannot be streamed.",
        "Save it again with megatron-core's own saver.",
    ),
    Row(
        "dist/tracker", ("stop",),
        "latest_checkpointed_iteration.txt holds neither a number nor `release`.",
        "It is unclear which iteration is meant; a job would start from nothing.",
        "Correct the file, or name the iteration folder itself.",
    ),
    Row(
        "dist/transformed", ("stop",),
        "The stored items went through a transform, such as compression.",
        "They cannot be read as plain bytes.",
        "Save without storage transforms.",
    ),
    # --- dtype ----------------------------------------------------------------------------------
    Row(
        "dtype/narrowed", ("error",),
        "Values do not survive the dtype they would be written in.",
        "Rounded router biases move tokens to other experts; rounded weights are another model.",
        "Keep the wider dtype: give a --like whose header says so.",
    ),
    Row(
        "dtype/not-reversible", ("error",),
        "A value would not come back from the offset that Megatron's spelling of a gamma asks for.",
        "Adding and removing the constant would change the weight.",
        "Such values are below 2**-16: check that the tensor is the trained one.",
    ),
    Row(
        "dtype/unsupported", ("stop",),
        "A dtype that has no exact conversion, or that torch_dist cannot store.",
        "The tensor cannot be carried over.",
        "Convert it to bf16, fp16 or fp32 first.",
    ),
    # --- explain --------------------------------------------------------------------------------
    Row(
        "explain/unknown", ("stop",),
        "No rule names the tensor that was asked for.",
        "Nothing; the nearest names are suggested.",
        "Check the spelling against `mtpconv inventory PATH --tensors`.",
    ),
    Row(
        "explain/unknown-finding", ("stop",),
        "No finding has the id that was asked for.",
        "Nothing; the nearest ids are suggested.",
        "Copy the id from a report, or see docs/findings.md.",
    ),
    # --- file -----------------------------------------------------------------------------------
    Row(
        "file/corrupt", ("stop",),
        "A file is truncated or damaged: its header, its length or an item does not fit.",
        "Weights would be garbage or missing.",
        "Fetch or copy the file again.",
    ),
    Row(
        "file/empty-folder", ("stop",),
        "The folder is empty.",
        "There is nothing to check.",
        "Check the path.",
    ),
    Row(
        "file/metadata", ("error",),
        "A shard's `__metadata__` came back with other entries.",
        "The files are no longer byte for byte the same, and some loaders look at it.",
        "Report it: a conversion here never changes it.",
    ),
    Row(
        "file/no-format-pt", ("warning",),
        "A shard's header has no `format: pt`.",
        "transformers refuses such files; this package reads them.",
        "Save again with metadata={'format': 'pt'}.",
    ),
    Row(
        "file/no-weights", ("stop",),
        "There is a config.json but no .safetensors file.",
        "There is nothing to convert.",
        "Convert .bin checkpoints to safetensors first.",
    ),
    Row(
        "file/not-a-checkpoint", ("stop",),
        "The folder is neither a HuggingFace nor a Megatron checkpoint.",
        "There is nothing to check.",
        "Check the path.",
    ),
    Row(
        "file/not-a-folder", ("stop",),
        "The path is a file.",
        "There is nothing to check.",
        "Name the folder it lies in.",
    ),
    Row(
        "file/not-found", ("stop",),
        "There is no such folder.",
        "There is nothing to check.",
        "Check the path.",
    ),
    Row(
        "file/order", ("error",),
        "A shard holds the same tensors in another order.",
        "The values are right, the file is not byte for byte the source's.",
        "Report it: a conversion here keeps the order.",
    ),
    Row(
        "file/unreadable", ("stop",),
        "The operating system failed to read a file.",
        "A tensor could not be read.",
        "Check the disk or the network file system, then run again.",
    ),
    # --- fp8: quantised weights -----------------------------------------------------------------
    Row(
        "fp8/config-mismatch", ("error",),
        "quantization_config and the stored weights disagree: plain weights where it says"
        " quantised, or quantised ones where it says nothing.",
        "Engines go by the config: they cast plain weights to FP8 without scales, or read codes as"
        " if they were values, and say nothing.",
        "Make quantization_config say what is stored; except plain layers by full module name.",
    ),
    Row(
        "fp8/folded", ("info",),
        "Quantised weights are read as plain tensors; their scales are accounted for in them.",
        _NOTHING,
        "Nothing to mend.",
    ),
    Row(
        "fp8/scale-missing", ("error",),
        "A quantised weight is stored without its scale.",
        "Its values are off by a factor of thousands; engines load it without complaint.",
        "Fetch the shard with the scale, or take weight and scale from the release.",
    ),
    Row(
        "fp8/scale-orphan", ("error",),
        "A scale is stored whose weight is not there, or is not quantised.",
        "Either the weight was lost, or it was replaced by one that the scale no longer fits.",
        "Restore the weight, or remove the scale.",
    ),
    Row(
        "fp8/scale-shape", ("error",),
        "A scale's shape or dtype does not fit its weight's.",
        "It cannot be known which values it scales.",
        "Take weight and scale from one release; check weight_block_size in config.json.",
    ),
    # --- index ----------------------------------------------------------------------------------
    Row(
        "index/corrupt", ("stop",),
        "model.safetensors.index.json is no safetensors index.",
        "No loader can find the shards.",
        "Fetch it again, or rebuild it: `mtpconv reindex HF_DIR`.",
    ),
    Row(
        "index/duplicate", ("stop",),
        "Two shards store a tensor of the same name.",
        "Which of the two is loaded depends on the loader.",
        "Remove one of the two.",
    ),
    Row(
        "index/ghost-entry", ("stop",),
        "The index says a tensor is in a shard whose header lacks it.",
        "The tensor is lost: loaders fail, or leave it uninitialised.",
        "Fetch that shard again; if the tensor is gone for good, `mtpconv reindex HF_DIR`.",
    ),
    Row(
        "index/mended", ("info",),
        "The index came back with its true total_size or entries.",
        _NOTHING,
        "Nothing to do.",
    ),
    Row(
        "index/missing", ("stop",),
        "There are several shards and no index.",
        "Loaders do not find the tensors, or take any file that lies there.",
        "Fetch it, or rebuild it: `mtpconv reindex HF_DIR`.",
    ),
    Row(
        "index/missing-shard", ("stop",),
        "The index names a shard that is not there.",
        "Its tensors are lost.",
        "Fetch the shard again.",
    ),
    Row(
        "index/stray-shard", ("warning",),
        "A .safetensors file is in no index entry.",
        "Loaders do not open it: an MTP head kept in such a file is never used.",
        "Remove it, or take it in: `mtpconv reindex HF_DIR`.",
    ),
    Row(
        "index/total-size", ("warning",),
        "The index's total_size is not the sum of the tensors.",
        "Memory planned from it is wrong; it often hints at a merge done by hand.",
        "`mtpconv reindex HF_DIR`.",
    ),
    Row(
        "index/unlisted", ("warning",),
        "A tensor is in a shard but not in the index.",
        "Loaders that go by the index never see it.",
        "`mtpconv reindex HF_DIR`.",
    ),
    # --- internal -------------------------------------------------------------------------------
    Row(
        "internal/exception", ("stop",),
        "An error that this package did not foresee.",
        "There is no verdict.",
        "Run it again with --debug and report what it prints.",
    ),
    # --- inv: tensors ---------------------------------------------------------------------------
    Row(
        "inv/alias", ("info",),
        "Norms lie under their other name (fused into the next linear, or a module of their own).",
        _NOTHING,
        "Nothing to do: both are read.",
    ),
    Row(
        "inv/carried", ("info",),
        "A tensor megatron-core has no parameter for is kept beside the checkpoint.",
        "Training does not move it: after training it may be stale.",
        "Nothing to do; it comes back with the HF side.",
    ),
    Row(
        "inv/changed", ("error",),
        "A tensor has the same name, shape and dtype on both sides, but other bytes.",
        "It is another model, by as much as cosine and max abs say.",
        "The hint names the cause where an exact test proves one; else look at what wrote it.",
    ),
    Row(
        "inv/clash", ("error",),
        "Two rules claim one tensor.",
        "One of the two would be overwritten.",
        "Report it: a family's rules must not do that.",
    ),
    Row(
        "inv/extra", ("error",),
        "A tensor is on the other side only.",
        "Strict loaders refuse it, others ignore it without a word.",
        "Drop it, or find out which name it should have had.",
    ),
    Row(
        "inv/failed", ("error",),
        "A rule cannot take its tensors, such as experts of two dtypes in one fused tensor.",
        "Nothing can be written.",
        "Give the tensors one dtype.",
    ),
    Row(
        "inv/ignored", ("info",),
        "A tensor is left out on purpose; the reason is printed.",
        _NOTHING,
        "Nothing to do.",
    ),
    Row(
        "inv/missing", ("error",),
        "A tensor is not there.",
        "It would be initialised at random, or fail to load.",
        "Take it from the release, or find the step that lost it.",
    ),
    Row(
        "inv/renamed", ("error",),
        "A tensor is there under another name: the only one with its bytes, shape and dtype.",
        "Loaders do not find it, and many say nothing.",
        "Rename it back; the pair is shown.",
    ),
    Row(
        "inv/reshaped", ("error",),
        "A tensor has another shape.",
        "It does not load, or loads broadcast.",
        "See the hint; config.json and tensors must agree.",
    ),
    Row(
        "inv/retyped", ("error",),
        "A tensor has another dtype.",
        "Narrower: values are rounded. Wider: memory and speed.",
        "Save it in the source's dtype.",
    ),
    Row(
        "inv/skipped", ("info",),
        "Entries of a Megatron checkpoint that are not weights: optimizer, RNG, _extra_state.",
        _NOTHING,
        "Nothing to do.",
    ),
    Row(
        "inv/unmapped", ("error",),
        "No rule carries the tensor to the other side.",
        "It would be lost.",
        "Report it if the release ships this tensor; else remove it.",
    ),
    # --- layout ---------------------------------------------------------------------------------
    Row(
        "layout/chunk-size", ("stop",),
        "A stored piece would be too large for its container.",
        "It cannot be written.",
        "Report it with the model's config.",
    ),
    Row(
        "layout/conflict", ("stop",),
        "Two Megatron keys hold the same logical tensor.",
        "Which one a job loads is unclear.",
        "Remove one of the two.",
    ),
    Row(
        "layout/heterogeneous", ("stop",),
        "The layers differ, so they cannot be stacked along one axis.",
        "Nothing was written.",
        "Use --layer-layout per-layer.",
    ),
    # --- like, manifest -------------------------------------------------------------------------
    Row(
        "like/needed", ("stop",),
        "The Megatron checkpoint has no manifest, so the HF side's names and dtypes are unknown.",
        "Nothing was written.",
        "Add --like HF_DIR, the folder the training started from.",
    ),
    Row(
        "like/no-manifest", ("stop",),
        "--like is neither an HF folder nor a checkpoint this package wrote.",
        "Nothing was written.",
        "Give the HF folder the training started from.",
    ),
    Row(
        "manifest/corrupt", ("stop",),
        "mtpconv.json in the checkpoint is damaged.",
        "What the HF side looked like is unknown.",
        "Give --like HF_DIR instead.",
    ),
    Row(
        "manifest/schema", ("stop",),
        "mtpconv.json was written by another version of this package.",
        "It cannot be read.",
        "Use the version that wrote it, or give --like HF_DIR.",
    ),
    # --- mtp ------------------------------------------------------------------------------------
    Row(
        "mtp/alias", ("info",),
        "The MTP layer's inner layer is called mtp_model_layer instead of transformer_layer.",
        _NOTHING,
        "Nothing to do: both are read.",
    ),
    Row(
        "mtp/alias-conflict", ("stop",),
        "An MTP tensor is stored under both of its names.",
        "Which one is the trained one is unclear.",
        "Remove the stale one.",
    ),
    Row(
        "mtp/config-contradiction", ("error", "warning"),
        "The config or the Megatron arguments declare another number of MTP layers than are "
        "stored. Declared and absent is an error, stored and undeclared a warning.",
        "Engines start without drafts, or fail to start; decoding runs at half the speed.",
        "Lost: take the layer from the release (`mtpconv graft`). Undeclared: set the key.",
    ),
    Row(
        "mtp/copy-quantised", ("info",),
        "An MTP layer's own embedding or head is quantised and the shared one is not.",
        "Nothing: the two cannot be equal, so the copy is kept beside the checkpoint.",
        "Nothing to mend; GLM-4.5-FP8 is released like this.",
    ),
    Row(
        "mtp/dropped", ("warning", "info"),
        "MTP layers were left out on request (--no-mtp, strip-mtp).",
        "No speculative decoding from this checkpoint.",
        "Nothing to do if it was meant.",
    ),
    Row(
        "mtp/missing", ("error",),
        "Tensors of the MTP layers are missing.",
        "Engines leave them uninitialised without a word: no draft is ever accepted.",
        "Train with --mtp-num-layers, graft the base's head (`mtpconv graft`), or export --no-mtp.",
    ),
    Row(
        "mtp/only-changed", ("info",),
        "Only the MTP layers hold other bytes than the base.",
        "Nothing, if the recipe was to train them alone.",
        "Nothing to do.",
    ),
    Row(
        "mtp/prefix", ("info",),
        "The MTP block lies under another prefix (language_model.mtp.*).",
        _NOTHING,
        "Nothing to do: it is read alike.",
    ),
    Row(
        "mtp/shared-copies", ("info",),
        "An MTP layer stores its own copy of embedding or head.",
        _NOTHING,
        "Nothing to do: the copies are compared bit for bit and come back.",
    ),
    Row(
        "mtp/shared-differs", ("error", "warning"),
        "An MTP layer's own embedding or head differs from the shared tensor, which megatron-core "
        "uses in its place.",
        "The MTP head that was trained is not the one that would be used.",
        "--carry-copies keeps it beside the checkpoint, without loss.",
    ),
    Row(
        "mtp/shared-omitted", ("info",),
        "An MTP layer stores no copies of embedding and head.",
        _NOTHING,
        "Nothing to do: none come back.",
    ),
    Row(
        "mtp/stale", ("warning",),
        "The model was trained, its MTP layer is still the base's, bit for bit.",
        "It drafts for another model: fewer drafts are accepted, and decoding slows down.",
        "Train the MTP layer along, or measure how many drafts are still accepted before serving.",
    ),
    Row(
        "mtp/unmapped", ("error",),
        "Tensors of MTP layers have no rule.",
        "The MTP head would be lost in the conversion.",
        "Check the family and its MTP key in config.json; report it if the release ships them.",
    ),
    # --- output ---------------------------------------------------------------------------------
    Row(
        "output/exists", ("stop",),
        "The output is there already, or is no checkpoint that --force may replace.",
        "Nothing was touched.",
        "Name another folder, or give --force.",
    ),
    Row(
        "output/overlap", ("stop",),
        "Source and output are the same folder, or one lies inside the other.",
        "Nothing was touched.",
        "Name a folder beside the source.",
    ),
    Row(
        "output/report", ("stop",),
        "A file named by --report or --html has an unknown extension, or no folder to lie in.",
        "Nothing was read: reports are checked before the work begins.",
        "End it in .json, .xml, .html, .md or .txt, and make its folder first.",
    ),
    # --- quant ----------------------------------------------------------------------------------
    Row(
        "quant/unsupported", ("stop",),
        "The weights are quantised by a scheme that is not converted (NVFP4, INT4, ...).",
        "The checkpoint cannot be converted as it is.",
        "Dequantise it first, or take the release's BF16 or FP8 checkpoint.",
    ),
    # --- sec ------------------------------------------------------------------------------------
    Row(
        "sec/path", ("stop",),
        "A file of the checkpoint names a path outside its folder.",
        "It was not opened.",
        "Do not load this checkpoint; ask whoever made it.",
    ),
    Row(
        "sec/pickle-global", ("stop",),
        "A pickle in the checkpoint names a class that no checkpoint needs.",
        "Loading it with torch could run code; here it was not executed.",
        "Do not load this file; ask whoever made it.",
    ),
    # --- sidecar --------------------------------------------------------------------------------
    Row(
        "sidecar/changed", ("error", "info"),
        "A file beside the weights came back with other bytes.",
        "Tokenizer, chat template or generation settings are not those of the source.",
        "Copy the source's file.",
    ),
    Row(
        "sidecar/extra", ("info",),
        "A file beside the weights is on the other side only.",
        "Nothing, unless loaders prefer it to a file that both sides have.",
        "Nothing to do if it is meant to be there.",
    ),
    Row(
        "sidecar/missing", ("error", "info", "stop"),
        "A file beside the weights did not come back.",
        "Without tokenizer or chat template the model answers in another format, or not at all.",
        "Copy it from the source.",
    ),
    Row(
        "sidecar/rewritten", ("info",),
        "A file beside the weights has other bytes and the same meaning (indents, line ends).",
        "Nothing; it went through another library.",
        "Nothing to do.",
    ),
    Row(
        "sidecar/skipped", ("info",),
        "A file was not copied: weights in another format, or no regular file.",
        _NOTHING,
        "Nothing to do.",
    ),
    # --- target ---------------------------------------------------------------------------------
    Row(
        "target/needs-newer", ("warning",),
        "Names and shapes are known, but megatron-core of that release cannot build this model.",
        "A job on that release cannot load the checkpoint; one on the named release can.",
        "Train with the megatron-core that the message names.",
    ),
    Row(
        "target/no-model", ("warning",),
        "No released megatron-core can build this model; the message says what it lacks.",
        "The checkpoint is exact and comes back bit for bit, but a training job needs its own model"
        " code that uses these names.",
        "Check that your training code has what the message names.",
    ),
    Row(
        "target/note", ("info",),
        "What a training job must see to with this family, beyond its arguments.",
        _NOTHING,
        "Set the job up as the message says.",
    ),
    Row(
        "target/too-new", ("stop",),
        "megatron-core of that release builds this model with parameters that no release has.",
        "Nothing was written.",
        "Write for an older one: --target-mcore.",
    ),
    Row(
        "target/too-old", ("stop",),
        "megatron-core of that release cannot build this model.",
        "Nothing was written.",
        "Write for a newer one: --target-mcore.",
    ),
    # --- tie ------------------------------------------------------------------------------------
    Row(
        "tie/contradiction", ("error",),
        "tie_word_embeddings and the stored head contradict each other.",
        "Half of the programs use the head, half the embedding: two different models.",
        "Set the flag that the weights speak for, or remove the head.",
    ),
    # --- usage ----------------------------------------------------------------------------------
    Row(
        "usage/one-checkpoint", ("stop",),
        "The command needs a second checkpoint, or a base.",
        "Nothing was compared.",
        "Name it, or give --base DIR.",
    ),
    # --- vocab ----------------------------------------------------------------------------------
    Row(
        "vocab/pad", ("info",),
        "The vocabulary was padded with zero rows for tensor parallelism.",
        _NOTHING,
        "Nothing to do: the way back trims it.",
    ),
    Row(
        "vocab/trim", ("info",),
        "Padding rows of the vocabulary are trimmed to the config's vocab_size.",
        _NOTHING,
        "Nothing to do.",
    ),
)  # fmt: skip

TABLE: dict[str, Row] = {row.id: row for row in _ROWS}
"""Every id with its row."""
