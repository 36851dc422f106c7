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
    # --- chat: template, tokenizer, loss mask ---------------------------------------------------
    Row(
        "chat/corrupt", ("stop",),
        "A tokenizer, config or template file is not what it must be (JSON, UTF-8).",
        "No engine can load it, so nothing can be checked.",
        "Fetch the file again.",
    ),
    Row(
        "chat/dangling-header", ("error",),
        "A finished conversation is rendered with text behind its last answer, often the next "
        "header.",
        "Training on it teaches the model to speak on, in the assistant's name.",
        "Put that part under {% if add_generation_prompt %}.",
    ),
    Row(
        "chat/double-bos", ("error",),
        "The template writes BOS, and the tokenizer adds another.",
        "Where rendered text is tokenized with special tokens on, every sample begins with two.",
        "Tokenize it with add_special_tokens=False, or drop one of the two.",
    ),
    Row(
        "chat/drops-field", ("error", "warning", "info"),
        "A field of the messages (tool_calls, reasoning_content, tools) is given and not rendered.",
        "What the data says there is never trained on, and never served.",
        "Use a template that renders it, or write it into the content.",
    ),
    Row(
        "chat/empty-template", ("error",),
        "The chat template's file is empty.",
        "Every conversation renders to nothing.",
        "Copy the template from the model this one was made of.",
    ),
    Row(
        "chat/eos-mismatch", ("error",),
        "The files do not agree on the tokens that end a generation.",
        "Depending on the engine, answers run on or are cut.",
        "List the stop token in generation_config.json, config.json and tokenizer_config.json.",
    ),
    Row(
        "chat/eos-unknown", ("error",),
        "A file names an end-of-sequence token that the tokenizer does not have.",
        "Nothing ever stops a generation there.",
        "Correct the token or its id.",
    ),
    Row(
        "chat/generation-header", ("error", "warning"),
        "A {% generation %} block marks the header of the answer as well, or its line end.",
        "The loss covers tokens that inference gives and the model never writes.",
        "Open the block behind the header, or make the mask with chat mask.",
    ),
    Row(
        "chat/generation-misplaced", ("error",),
        "A {% generation %} block stands in a macro, a filter or a set block.",
        "transformers counts its place from the text put out so far, so the mask covers other "
        "words.",
        "Write it in the template's main flow, or make the mask with chat mask.",
    ),
    Row(
        "chat/generation-missed", ("error",),
        "An assistant turn lies in no {% generation %} block.",
        "It is not trained on.",
        "Wrap every branch that writes an answer, or make the mask with chat mask.",
    ),
    Row(
        "chat/generation-stop", ("error",),
        "A {% generation %} block ends before the stop token.",
        "The model is never taught to stop.",
        "Close the block behind the stop token, or make the mask with chat mask.",
    ),
    Row(
        "chat/kwargs", ("stop",),
        "A --kwargs word is not NAME=VALUE.",
        "Nothing was rendered.",
        "Write it as --kwargs enable_thinking=false.",
    ),
    Row(
        "chat/marker-split", ("error",),
        "A role marker or stop token is one token for one engine, and pieces of text for another.",
        "Training and serving see other ids for the same text.",
        "Add it to added_tokens of tokenizer.json as a special token.",
    ),
    Row(
        "chat/mask-refused", ("error",),
        "A row has no right loss mask, for the reason it gives.",
        "The row is not in the output; a guessed mask would train the wrong tokens.",
        "See the reason: other --kwargs, --on-mismatch expand, or other data.",
    ),
    Row(
        "chat/no-default", ("error",),
        "There are named template variants and no default one.",
        "apply_chat_template raises unless each call names a variant.",
        "Save the one to use as chat_template.jinja.",
    ),
    Row(
        "chat/no-generation-block", ("info",),
        "The template has no {% generation %} blocks.",
        "transformers' own assistant mask is all zeros; chat mask works without them.",
        "Nothing to do.",
    ),
    Row(
        "chat/no-jinja2", ("stop",),
        "jinja2 is not installed.",
        "Templates cannot be rendered.",
        "pip install 'mtpconv[chat]'.",
    ),
    Row(
        "chat/no-pyarrow", ("stop",),
        "pyarrow is not installed.",
        "An .arrow output cannot be written.",
        "pip install 'mtpconv[arrow]', or name the output .jsonl.",
    ),
    Row(
        "chat/no-sidecars", ("stop",),
        "The folder has no tokenizer files, and no hf_sidecar folder.",
        "There is nothing to check; a training job's own checkpoint has none.",
        "Check the HF folder the job began with.",
    ),
    Row(
        "chat/no-stop", ("warning",),
        "Nothing ends the last answer of a conversation.",
        "Training on it teaches no stop; only turns with a message behind them do.",
        "Append the stop token in training, or put a message behind the answer.",
    ),
    Row(
        "chat/no-template", ("stop",),
        "There is no default chat template.",
        "Nothing can be rendered.",
        "mtpconv chat check says which templates there are.",
    ),
    Row(
        "chat/no-tokenizer", ("warning", "stop"),
        "There is no tokenizer.json.",
        "Tokens were not checked; a mask cannot be made.",
        "Load and save the tokenizer with transformers once, which writes it.",
    ),
    Row(
        "chat/no-tokenizers", ("stop",),
        "tokenizers is not installed.",
        "Text cannot be tokenized.",
        "pip install 'mtpconv[chat]'.",
    ),
    Row(
        "chat/nondeterministic", ("warning",),
        "The rendered text depends on the day, or on chance.",
        "What is trained today is not what is served later.",
        "Give the date as a template variable, or stop it with --now.",
    ),
    Row(
        "chat/now", ("stop",),
        "--now is not an ISO date.",
        "Nothing was rendered.",
        "Write it as --now 2026-01-31.",
    ),
    Row(
        "chat/old-jinja2", ("stop",),
        "jinja2 is older than 3.1.6.",
        "Its sandbox has known ways out, and chat templates are untrusted programs.",
        "pip install -U jinja2.",
    ),
    Row(
        "chat/pad-is-eos", ("warning",),
        "pad_token and eos_token are one token.",
        "A collator that masks padding masks every stop token too, and the model never learns "
        "to stop.",
        "Give padding a token of its own.",
    ),
    Row(
        "chat/padding-side", ("error", "info"),
        "padding_side is right, or no side at all.",
        "Batched generation pads behind the prompt; training does not mind.",
        "Set padding_side to left for generation.",
    ),
    Row(
        "chat/prefix-mismatch", ("error",),
        "The training text does not begin with the prompt that inference gives before the answer.",
        "The model is trained behind a prefix it never sees again.",
        "Give training and serving the same template variables, or mend the generation prompt.",
    ),
    Row(
        "chat/prefix-short", ("error", "warning"),
        "The inference prompt stops a newline or space short of where the answer begins.",
        "A prefix all the same, so the usual test passes; but the model must write it, and a "
        "mask that starts at the content never teaches that.",
        "Add it to the add_generation_prompt branch.",
    ),
    Row(
        "chat/rewrites-history", ("warning",),
        "A later message changes how an earlier one is rendered; most often its thinking is "
        "stripped.",
        "A multi-turn sample trains the earlier turns as they were never generated.",
        "Train one sample per turn: chat mask --on-mismatch expand.",
    ),
    Row(
        "chat/source-drift", ("error",),
        "Two files hold a default chat template, and they differ.",
        "transformers and llama.cpp render the same conversation differently.",
        "Keep one; transformers writes chat_template.jinja only.",
    ),
    Row(
        "chat/special-in-content", ("error", "warning"),
        "The data holds the text of an added token.",
        "It becomes that token: a user's message can end its own turn.",
        "Take it out of the data, or break it with a space.",
    ),
    Row(
        "chat/stop-differs", ("warning",),
        "The last answer ends with another token than earlier ones.",
        "In a multi-turn sample the earlier turns teach a stop that serving may not know.",
        "Train one sample per turn, or list both tokens in generation_config.json.",
    ),
    Row(
        "chat/stop-not-eos", ("error",),
        "Answers end with a token that no file lists as end of generation.",
        "Serving runs on behind the answer.",
        "Add its id to eos_token_id of generation_config.json.",
    ),
    Row(
        "chat/syntax", ("error",),
        "The template is not valid Jinja.",
        "Nothing renders.",
        "Mend the line it names.",
    ),
    Row(
        "chat/template-limit", ("error",),
        "The template takes too much time, memory or text for one conversation.",
        "It was stopped: a template is a program, and this one would hang a server.",
        "Do not use it; ask whoever made it.",
    ),
    Row(
        "chat/template-raises", ("error", "warning"),
        "The template refuses a conversation.",
        "Data of this form cannot be trained on or served.",
        "Use conversations it takes, or another template.",
    ),
    Row(
        "chat/token-id-differs", ("error",),
        "tokenizer_config.json and tokenizer.json give one token two ids.",
        "Which one a text becomes depends on the loader.",
        "Correct added_tokens_decoder.",
    ),
    Row(
        "chat/token-merge", ("error",),
        "The text prefix holds, but header and answer merge into one token.",
        "Inference feeds other tokens than training did.",
        "End the header with an added token, or change how answers begin.",
    ),
    Row(
        "chat/tokenizer-class", ("warning",),
        "tokenizer_config.json is in a form that transformers before 5 cannot read.",
        "Older serving and training stacks fail to load the tokenizer.",
        "PreTrainedTokenizerFast and additional_special_tokens are read everywhere.",
    ),
    Row(
        "chat/tool-arguments", ("info",),
        "The template takes tool call arguments as JSON text, not as an object.",
        "Data with objects raises.",
        "Dump the arguments before rendering.",
    ),
    Row(
        "chat/utf8-bom", ("error",),
        "The template's file begins with a byte order mark.",
        "Every rendering begins with that invisible character, and so does every sample.",
        "Save it as UTF-8 without BOM.",
    ),
    Row(
        "chat/variant-shadowed", ("warning",),
        "A named template variant is known to one engine and lost to another.",
        "Tools or documents are rendered by another template than you think.",
        "Keep variants in additional_chat_templates/ and tokenizer_config.json alike.",
    ),
    Row(
        "chat/vocab-size", ("error",),
        "The tokenizer has ids beyond the embedding's rows.",
        "Such a token is an index error, or garbage.",
        "Resize the embedding, or take the tokenizer the model was trained with.",
    ),
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
        "config/contradiction", ("error",),
        "A key of config.json fixes a size, and the tensors, or Megatron's own arguments, have "
        "another.",
        "Whoever loads by the config builds another model than the one that is stored.",
        "Take config.json from the release the weights began with; if the key was changed on "
        "purpose, the tensors must follow.",
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
        "config/rope-schema", ("error",),
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
    # --- data -----------------------------------------------------------------------------------
    Row(
        "data/missing", ("stop",),
        "The data file is not there.",
        "Nothing was read.",
        "Check the path.",
    ),
    Row(
        "data/row", ("stop",),
        "A row of the data is not a conversation in JSON.",
        "Work stopped there, at the row it names.",
        "Correct the row, or take it out.",
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
    # --- draft ------------------------------------------------------------------------------------
    Row(
        "draft/no-memory", ("info",),
        "The model does not fit in memory, so no real decode was run.",
        "The teacher-forced rate is all there is.",
        "Run it where the memory is, or accept the teacher-forced rate.",
    ),
    Row(
        "draft/no-mtp", ("stop",),
        "The folder stores no MTP layer.",
        "There is nothing to draft with: speculative decoding will run at the speed of none.",
        "mtpconv inventory shows what there is; mtpconv graft restores a lost head.",
    ),
    Row(
        "draft/not-identical", ("error",),
        "A speculative greedy decode said other tokens than plain greedy decoding.",
        "Verification or the model is not deterministic; acceptance rates cannot be trusted.",
        "Run it in float32; if it stays, report it with the checkpoint's config.",
    ),
    Row(
        "draft/vocab", ("stop",),
        "The smaller model has another vocabulary than the model it drafts for.",
        "Its tokens mean something else.",
        "Name a model that shares the tokenizer.",
    ),
    # --- dtype ----------------------------------------------------------------------------------
    Row(
        "dtype/narrowed", ("error", "warning"),
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
        "dtype/rounded", ("warning",),
        "A job trained norms as gamma - 1, and HF's dtype does not hold every gamma exactly.",
        "At most half a step of HF's dtype near one; a model trained in HF's spelling has it too.",
        "Nothing to mend, or give a --like that keeps these norms in fp32.",
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
        "Copy the id from a report; `mtpconv explain-finding` lists them all.",
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
        "file/not-regular", ("stop",),
        "A pipe, a socket, a device or a folder stands where a file is due.",
        "Reading it could block or go on for ever, so it was not opened.",
        "Put the file itself there.",
    ),
    Row(
        "file/order", ("error",),
        "A shard holds the same tensors in another order.",
        "The values are right, the file is not byte for byte the source's.",
        "Report it: a conversion here keeps the order.",
    ),
    Row(
        "file/too-large", ("stop",),
        "A small file (config, index, .metadata, common.pt, template) is larger than any such is.",
        "Reading it could take all memory, so it was not read.",
        "Fetch it again, or ask whoever made it.",
    ),
    Row(
        "file/too-many", ("stop",),
        "The checkpoint lists, or a stacked axis stands for, more than a million tensors.",
        "Expanding them could take all memory, so nothing was read.",
        "Check where the checkpoint came from.",
    ),
    Row(
        "file/unreadable", ("stop",),
        "The operating system failed to read a file.",
        "A tensor could not be read.",
        "Check the disk or the network file system, then run again.",
    ),
    # --- fp8 --------------------------------------------------------------------------------------
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
        "fp8/not-finite", ("error",),
        "A weight that is to be quantised holds infinity, or NaN where the format has none.",
        "No code stands for it.",
        "Look at the training run; a weight that is not finite is lost.",
    ),
    Row(
        "fp8/requantised", ("info",),
        "Weights were written in a release's quantisation (--fp8-like).",
        _NOTHING,
        "Nothing to mend.",
    ),
    Row(
        "fp8/scale-changed", ("info",),
        "Some blocks have values that would overflow under the release's scale; those blocks got"
        " one of their own.",
        "Nothing beyond rounding: the largest error is given against half an ulp of the format.",
        "Nothing to mend; many such blocks after little training are worth a look.",
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
    # --- gate -------------------------------------------------------------------------------------
    Row(
        "gate/allow-unused", ("info",),
        "A finding that --allow or the policy accepts did not occur.",
        "Nothing; but a stale entry will one day accept what it was not meant for.",
        "Remove the entry.",
    ),
    Row(
        "gate/bad-policy", ("stop",),
        "mtpconv.toml, or [tool.mtpconv] in pyproject.toml, has an unknown key or a wrong value.",
        "The gate would look at something else than the project meant.",
        "Correct the key; the error names the known ones.",
    ),
    Row(
        "gate/engine-cast", ("error",),
        "A wide MTP weight lies where the engine builds a quantised layer, for the "
        "quantization_config does not exclude that module by its whole name.",
        "vLLM casts it and never fills its scale, so drafts are noise and half the speed is lost "
        "without a word; SGLang stops.",
        "List the module's whole name in modules_to_not_convert (a layer's bare prefix excludes "
        "nothing), or quantise it.",
    ),
    Row(
        "gate/engine-copies", ("info",),
        "An MTP layer has no embedding of its own, and the engine's last pipeline stage has none "
        "to share.",
        "Nothing without pipeline parallelism.",
        "Serve without pipeline parallelism, or export with the copies.",
    ),
    Row(
        "gate/engine-ignores-shard", ("error",),
        "A file on disk that the engine will not open: no index entry names it, or another file "
        "goes before it.",
        "Its tensors stay uninitialised in the engine, mostly without a word.",
        "`mtpconv reindex` lists every shard; move a stray consolidated file away.",
    ),
    Row(
        "gate/engine-key", ("error",),
        "The config key that announces MTP is absent where the engine needs it, or has a value it "
        "refuses.",
        "The engine stops when MTP is asked for, or leaves it off without a word.",
        "Set the key to the number of MTP layers stored (1 where the engine takes no other).",
    ),
    Row(
        "gate/engine-layers", ("error", "warning"),
        "The engine runs another number of MTP layers than are stored.",
        "Layers that it does not run are dead weight; layers that overwrite each other draft "
        "badly.",
        "Set the config key to the number stored, or export the layers the engine runs.",
    ),
    Row(
        "gate/engine-missing", ("error",),
        "A tensor that the engine's MTP loader needs is not in any file it opens.",
        "Most loaders say nothing and keep whatever the memory held: the engine runs, no draft is "
        "accepted, half the speed is lost.",
        "Restore the tensor from the release: `mtpconv graft`, or export again with --like.",
    ),
    Row(
        "gate/engine-unknown", ("stop",),
        "What the engine asks of this model type's MTP layers is not known to this package.",
        "The check that was asked for cannot be made.",
        "Leave --for out, or accept it by name: the other checks hold all the same.",
    ),
    Row(
        "gate/engine-unread", ("error", "warning"),
        "A tensor of an MTP layer that the engine has no parameter for.",
        "It is skipped without a word, or stops the loader; often it is a misnamed tensor that is "
        "missing elsewhere.",
        "Compare its name with the release's.",
    ),
    Row(
        "gate/engine-unsupported", ("error",),
        "The engine has no MTP loader for this model type.",
        "It serves the model without drafting.",
        "Serve with the other engine, or without MTP.",
    ),
    Row(
        "gate/unknown-id", ("stop",),
        "--allow or the policy names a finding that does not exist.",
        "The finding that was meant would not be accepted.",
        "Correct the id; `mtpconv explain-finding` lists them all.",
    ),
    # --- graft ----------------------------------------------------------------------------------
    Row(
        "graft/nothing", ("stop",),
        "There is nothing to graft: the base has no MTP layers, or none is lacking.",
        "Nothing was written.",
        "Check both paths with `mtpconv inventory`.",
    ),
    Row(
        "graft/other-model", ("stop",),
        "The base is another model, or quantised in another way.",
        "Its MTP layers would not fit.",
        "Give the base that training began with.",
    ),
    Row(
        "graft/shard-exists", ("stop",),
        "The shard that a graft writes (mtp.safetensors) is there already.",
        "Nothing was written.",
        "Remove it or rename it, `mtpconv reindex`, and graft again.",
    ),
    # --- hub ------------------------------------------------------------------------------------
    Row(
        "hub/gated", ("stop",),
        "The repository is gated or private, and the hub refuses the token it was given.",
        "Nothing was checked.",
        "Accept the terms on the repository's page and run `hf auth login`.",
    ),
    Row(
        "hub/no-checkpoint", ("stop",),
        "The repository holds no config.json.",
        "Nothing was checked.",
        "Name a repository of safetensors weights.",
    ),
    Row(
        "hub/no-range", ("stop",),
        "The server sends whole files where a part was asked for.",
        "Headers alone cannot be read; all weights would have to come.",
        "Download the checkpoint with `hf download` and name its folder.",
    ),
    Row(
        "hub/not-found", ("stop",),
        "No folder of that name is here, and the hub knows no such repository or revision.",
        "Nothing was checked.",
        "Check the name and what follows the @; a private one needs `hf auth login`.",
    ),
    Row(
        "hub/not-installed", ("stop",),
        "A hub reference was given, and huggingface_hub is not installed.",
        "Nothing was checked.",
        "pip install 'mtpconv[hub]'.",
    ),
    Row(
        "hub/unreachable", ("stop",),
        "The hub did not answer, answered with an error, or its answers ended early, three times.",
        "Nothing was checked.",
        "Try again later, check the network, or name a local folder.",
    ),
    Row(
        "hub/weights", ("stop",),
        "The command reads weights, and of a hub repository only headers are read.",
        "Nothing was checked.",
        "Download the checkpoint with `hf download` and name its folder.",
    ),
    # --- index ----------------------------------------------------------------------------------
    Row(
        "index/corrupt", ("stop",),
        "model.safetensors.index.json is no safetensors index.",
        "No loader can find the shards.",
        "Fetch it again, or rebuild it: `mtpconv reindex HF_DIR`.",
    ),
    Row(
        "index/dropped", ("warning",),
        "The old index named a tensor that no shard holds; the rebuilt one does not.",
        "The tensor is lost here.",
        "Take it from the release.",
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
        "The index came back with its true total_size or entries, or without scales that were"
        " folded in and tensors that were left out.",
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
        "inv/halves", ("info",),
        "Gate and up rows of MLPs are stored under keys of their own and are read as one tensor.",
        _NOTHING,
        "Nothing to mend: fsdp_dtensor checkpoints and singleton shards are written so.",
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
        "Layers, or the experts of one, differ and so cannot lie in one tensor.",
        "Nothing was written.",
        "Layers: use --layer-layout per-layer. Experts: store them alike.",
    ),
    # --- like, manifest -------------------------------------------------------------------------
    Row(
        "like/needed", ("stop",),
        "The Megatron checkpoint has no manifest, so the HF side's names and dtypes are unknown.",
        "Nothing was written.",
        "Add --like HF_DIR, the folder the training started from.",
    ),
    Row(
        "like/not-quantised", ("stop",),
        "The folder of --fp8-like holds no quantised weight.",
        "There is no scheme to write in.",
        "Name the quantised release, or use --like.",
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
        "mtp/alias-conflict", ("error",),
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
        "output/mount-point", ("stop",),
        "The output is a mount point, whose place no finished folder can take by a rename.",
        "Nothing was touched.",
        "Name a folder inside it.",
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
    Row(
        "output/unwritable", ("stop",),
        "The output, or its partial file, cannot be written.",
        "Nothing was written.",
        "Name an output in a folder you may write to.",
    ),
    # --- parity -----------------------------------------------------------------------------------
    Row(
        "parity/experts-unreached", ("warning",),
        "Some experts got no token from the texts that were run.",
        "A fault in one of those experts would not show in the forward.",
        "Give more and other text with --data; random tokens reach most.",
    ),
    Row(
        "parity/head", ("error",),
        "Both sides get the same hidden states, and the output head makes other logits of them.",
        "Every next-token probability is off.",
        "mtpconv explain HF_DIR output_layer.weight; a tied model must be tied on both sides.",
    ),
    Row(
        "parity/logits", ("error",),
        "Every part agrees on the same states, but the logits of a whole forward do not.",
        "Small errors add up through the layers; the model served is not quite the one trained.",
        "Look for the part with the largest own error in the JSON report.",
    ),
    Row(
        "parity/missing", ("stop",),
        "A part of the model asks for weights that one of the two checkpoints lacks.",
        "It cannot be run, so nothing is known of it.",
        "mtpconv plan and inventory show what is there; check the release it was written for.",
    ),
    Row(
        "parity/mtp", ("error",),
        "An MTP layer, or its logits, computes something else in megatron-core than in the "
        "reference.",
        "Drafts are rejected: speculative decoding runs at the speed of none, and nothing "
        "fails.",
        "Look at that layer's rules (mtpconv explain) and its config; exchanged halves of "
        "eh_proj and enorm for hnorm are the usual suspects.",
    ),
    Row(
        "parity/no-mtp", ("info",),
        "The model has no MTP layer that was run.",
        _NOTHING,
        "None needed; --no-mtp leaves them out on purpose.",
    ),
    Row(
        "parity/hybrid-layout", ("stop",),
        "The Megatron checkpoint is laid out for HybridModel, where attention and MLP are layers of"
        " their own, and the family's model is not.",
        "Its layers cannot be compared with the HF model's one by one.",
        "Convert with --mcore-model gpt and compare that; roundtrip --check proves the bytes.",
    ),
    Row(
        "parity/no-mtp-reference", ("stop",),
        "There is no reference of this family's MTP layers on the HuggingFace side.",
        "Its MTP head cannot be compared.",
        "--no-mtp checks the trunk alone.",
    ),
    Row(
        "parity/not-installed", ("stop",),
        "transformers or megatron-core cannot be imported.",
        "Without both there is nothing to compare.",
        "Install the extra: pip install 'mtpconv[parity]'.",
    ),
    Row(
        "parity/not-possible", ("stop",),
        "One of the two libraries failed while it built or ran the model.",
        "There is no verdict.",
        "--debug shows where; a newer release of that library may know the model.",
    ),
    Row(
        "parity/prompts", ("stop",),
        "The tokens to run cannot be made: a file or the tokenizer cannot be read, or a token "
        "is out of range.",
        "Nothing was run.",
        "Give --data a text file, or JSON lines with text or input_ids.",
    ),
    Row(
        "parity/shape", ("stop",),
        "A stored tensor has another shape than the parameter megatron-core builds, or the two"
        " checkpoints are of different sizes.",
        "A training job would refuse the checkpoint.",
        "Check that both are the same model, and the arguments the checkpoint was saved with"
        " against config.json.",
    ),
    Row(
        "parity/too-old", ("stop",),
        "The installed megatron-core lacks an argument that the model needs, or refuses one.",
        "The model cannot be built as it would be trained.",
        "mtpconv families says which release is needed.",
    ),
    Row(
        "parity/too-short", ("warning",),
        "The sequences are too short for something the model does only with longer ones: an indexer"
        " that leaves tokens out, a sliding window, a RoPE that changes.",
        "A fault there (an indexer's weights, another window) would not show in the forward.",
        "mtpconv parity --length with more tokens than the config key it names.",
    ),
    Row(
        "parity/trunk", ("error",),
        "The embedding, a decoder layer or the final norm computes something else in "
        "megatron-core than in transformers, given the same states.",
        "The model that trains is not the model that was released.",
        "Look at the named part's rules (mtpconv explain) and at the arguments of the "
        "Megatron side: RoPE, epsilon, router.",
    ),
    Row(
        "parity/unexpected", ("stop",),
        "transformers has no place for a tensor, or wants it in another shape.",
        "Its side of the comparison cannot be built.",
        "Install a transformers that knows this release.",
    ),
    Row(
        "parity/unsupported", ("stop",),
        "transformers has no causal LM for this model_type.",
        "There is nothing to compare with.",
        "Install a transformers that has it; roundtrip --check proves the bytes all the same.",
    ),
    # --- quant ----------------------------------------------------------------------------------
    Row(
        "quant/unsupported", ("stop",),
        "The weights are quantised by a scheme that is not converted (NVFP4, INT4, ...).",
        "The checkpoint cannot be converted as it is.",
        "Dequantise it first, or take the release's BF16 or FP8 checkpoint.",
    ),
    # --- memory ---------------------------------------------------------------------------------
    Row(
        "memory/budget", ("stop",),
        "--max-memory is less than one thread needs: what the plan holds, its buffers, and the"
        " largest matrix that is computed.",
        "Nothing was written.",
        "Allow what the message says; it depends on the model's largest computed matrix, not on the"
        " checkpoint's size.",
    ),
    # --- ranks and resuming ---------------------------------------------------------------------
    Row(
        "output/busy", ("stop",),
        "Another mtpconv is writing the same output at this moment.",
        "Nothing was touched.",
        "Wait for it, or name another folder.",
    ),
    Row(
        "rank/join", ("stop",),
        "The processes that torchrun started did not find each other.",
        "Nothing was done.",
        "Start it on every machine, with the same --rdzv-endpoint and --nnodes.",
    ),
    Row(
        "rank/lost", ("stop",),
        "A rank died without a word, was told to stop, or has not said for a minute that it lives.",
        "All ranks stopped; nothing was published.",
        "Look at that rank's node (memory, disk, the scheduler's log), then run it again.",
    ),
    Row(
        "rank/not-shared", ("stop",),
        "One rank does not see what another wrote: the output is on a disk of one machine.",
        "Nothing was published.",
        "Write to a file system that all ranks share.",
    ),
    Row(
        "resume/journal", ("stop",),
        "The journal of an interrupted run cannot be read, so what it left cannot be trusted.",
        "Nothing was touched.",
        "Run it without --resume: that begins anew.",
    ),
    Row(
        "resume/other", ("stop",),
        "What an interrupted run left is of another conversion: other sources, options or version.",
        "Nothing was touched.",
        "Give the options of that run, or run without --resume: that begins anew.",
    ),
    Row(
        "source/changed", ("stop",),
        "A source file changed (size, time or inode) while it was converted, or since an"
        " interrupted run began.",
        "Nothing was published: the result would have been a mixture.",
        "Let whoever writes it finish, then convert again (without --resume).",
    ),
    # --- sec ------------------------------------------------------------------------------------
    Row(
        "sec/name", ("stop",),
        "A tensor or file has a name with control or invisible characters, bytes that are not "
        "UTF-8, or more than 1,024 characters.",
        "Such a name can command a terminal or pass for another; the checkpoint was not read.",
        "Do not use the file; ask whoever made it.",
    ),
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
    Row(
        "sec/template", ("error",),
        "The template reaches for Python's internals.",
        "Jinja's sandbox stopped it; without one it could run code.",
        "Do not use this template; ask whoever made it.",
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
    # --- strip ----------------------------------------------------------------------------------
    Row(
        "strip/nothing", ("stop",),
        "The checkpoint holds no MTP tensors.",
        "Nothing was written.",
        "Check the path.",
    ),
    # --- target ---------------------------------------------------------------------------------
    Row(
        "target/needs-newer", ("warning",),
        "Names and shapes are known, but megatron-core of that release cannot build this model.",
        "A job on that release cannot load the checkpoint; one on the named release can.",
        "Train with the megatron-core that the message names.",
    ),
    Row(
        "target/no-hybrid", ("stop",),
        "HybridModel was asked for, and it has no module for one of the model's tensors.",
        "The tensor would have no home, so nothing is written.",
        "Write for GPTModel: --mcore-model gpt.",
    ),
    Row(
        "target/no-model", ("warning", "stop"),
        "No released megatron-core can build this model; the message says what it lacks.",
        "The checkpoint is exact and comes back bit for bit, but a training job needs its own model"
        " code that uses these names. Parity runs it where it has the lacking modules itself, and"
        " stops where it has not.",
        "Check that your training code has what the message names.",
    ),
    Row(
        "target/note", ("info",),
        "What a training job must see to with this family, beyond its arguments.",
        _NOTHING,
        "Set the job up as the message says.",
    ),
    Row(
        "target/rope", ("warning",),
        "The config stretches RoPE in a way that megatron-core does not have.",
        "The weights are exact, but a training job places tokens otherwise than the release does.",
        "Train within the original context length, or with code that has this kind of RoPE.",
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
        "tie/alias", ("info",),
        "A tied head is stored under a name of its own too.",
        _NOTHING,
        "Nothing to do: it is compared bit for bit, and both names come back.",
    ),
    Row(
        "tie/contradiction", ("error",),
        "tie_word_embeddings and the stored head contradict each other.",
        "Half of the programs use the head, half the embedding: two different models.",
        "Set the flag that the weights speak for, or remove the head.",
    ),
    Row(
        "tie/omitted", ("info",),
        "The head is tied to the embedding and not stored.",
        _NOTHING,
        "Nothing to do: none comes back.",
    ),
    # --- usage ----------------------------------------------------------------------------------
    Row(
        "usage/device", ("stop",),
        "A device was asked for that is not there.",
        "Nothing was run.",
        "Use --device cpu.",
    ),
    Row(
        "usage/draft", ("stop",),
        "parity --draft was asked of a model without MTP layers, or of a part of one.",
        "Nothing was run.",
        "Drop --draft, or what leaves layers out.",
    ),
    Row(
        "usage/graft", ("stop",),
        "graft was not told what to graft.",
        "Nothing was written.",
        "Give --mtp.",
    ),
    Row(
        "usage/layers", ("stop",),
        "--layers names a part the model does not have.",
        "Nothing was run.",
        "Layers are counted from 0; mtp means every MTP layer.",
    ),
    Row(
        "usage/like", ("stop",),
        "--like and --fp8-like were both given.",
        "Both say what the result is to look like.",
        "Give one of the two.",
    ),
    Row(
        "usage/one-checkpoint", ("stop",),
        "The command needs a second checkpoint, or a base.",
        "Nothing was compared.",
        "Name it, or give --base DIR.",
    ),
    Row(
        "usage/options", ("stop",),
        "An option or argument is missing, unknown or has a value that is none of its own.",
        "Nothing was run.",
        "The command's --help lists them.",
    ),
    Row(
        "usage/order", ("stop",),
        "parity was given the Megatron checkpoint first.",
        "Nothing was run.",
        "The HuggingFace folder comes first.",
    ),
    Row(
        "usage/output", ("stop",),
        "A repair was told neither or both of a new folder and --in-place.",
        "Nothing was written.",
        "Name a new folder, or give --in-place.",
    ),
    Row(
        "usage/parity", ("stop",),
        "--parity was asked for together with an option that writes no checkpoint.",
        "Nothing was run.",
        "Drop one of the two options.",
    ),
    Row(
        "usage/size", ("stop",),
        "A size on the command line cannot be read.",
        "Nothing was done.",
        "Say 2GB, 512MiB or a number of bytes.",
    ),
    # --- values ---------------------------------------------------------------------------------
    Row(
        "values/constant", ("info",),
        "Every element of a tensor has the same bits (a gamma that was never trained, say).",
        _NOTHING,
        "Look at it if the model was trained.",
    ),
    Row(
        "values/inf", ("warning",),
        "A tensor that was written holds infinities.",
        "The model gives NaN, at once or for some tokens.",
        "Look for where training diverged, and go back to a checkpoint before it.",
    ),
    Row(
        "values/nan", ("warning",),
        "A tensor that was written holds NaN.",
        "Every token that meets them gives NaN.",
        "Look for where training diverged, and go back to a checkpoint before it.",
    ),
    Row(
        "values/zero", ("info",),
        "Every element of a tensor is zero.",
        "Nothing for a bias; a matrix of zeros was never trained, or lost.",
        "Compare it with its source: mtpconv diff.",
    ),
    # --- verify ---------------------------------------------------------------------------------
    Row(
        "verify/corrupt", ("stop",),
        "The file or entry with the digests of a checkpoint cannot be read.",
        "Nothing can be checked against it.",
        "Convert again, or fetch the file again; without it: mtpconv diff against the source.",
    ),
    Row(
        "verify/damaged", ("error",),
        "A stored tensor's bytes on the disk are not those that were written.",
        "No loader notices: the model serves or trains with a damaged weight.",
        "Fetch that file again, or convert again; then look for the disk or copy that did it.",
    ),
    Row(
        "verify/edited", ("warning",),
        "A file beside the weights is not the one the hub has.",
        "Nothing if it was edited on purpose.",
        "Fetch the file again if it was not.",
    ),
    Row(
        "verify/file", ("error", "warning"),
        "A file is gone, has another size, cannot be read, or its bytes outside any tensor "
        "(header, container) are not those that were written; or a weights file is not the hub's.",
        "It does not load, or loads with damaged weights.",
        "Fetch that file again, or convert again.",
    ),
    Row(
        "verify/nothing", ("stop",),
        "The folder has no digests of ours, and no hashes of the hub are known for its files.",
        "Whether its bytes are still the right ones cannot be told.",
        "Compare it with its source: mtpconv diff.",
    ),
    Row(
        "verify/schema", ("stop",),
        "The digests of a checkpoint are of a kind that this mtpconv does not know.",
        "Nothing can be checked against them.",
        "Use the mtpconv that wrote them, or a newer one.",
    ),
    Row(
        "verify/unknown-source", ("info",),
        "--verify: the source has neither digests of ours nor hub hashes.",
        "Damage that it took before the conversion cannot be told.",
        "Nothing to do; what mtpconv writes has digests.",
    ),
    Row(
        "verify/unlisted", ("warning",),
        "A file of weights has no digest, so its bytes were not checked.",
        "A pass says nothing of it.",
        "Convert again, so that every file has one.",
    ),
    # --- vocab ----------------------------------------------------------------------------------
    Row(
        "vocab/mismatch", ("error",),
        "Embedding rows, config.json and tokenizer do not agree on the size of the vocabulary.",
        "A token beyond the embedding reads past its end, or stops the engine, when it first "
        "occurs.",
        "Resize the embedding with the tokenizer, or take both from one release.",
    ),
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
    Row(
        "vocab/unreadable", ("stop",),
        "tokenizer.json is not a tokenizer.",
        "Whether its ids fit the embedding cannot be told.",
        "Fetch the file again.",
    ),
)  # fmt: skip

TABLE: dict[str, Row] = {row.id: row for row in _ROWS}
"""Every id with its row."""
