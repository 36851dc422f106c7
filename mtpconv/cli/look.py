"""Commands that only look: inventory, plan, explain, families, demo."""

from typing import TYPE_CHECKING, Annotated

import typer

from mtpconv.cli.app import app
from mtpconv.cli.common import (
    Debug,
    Dtype,
    Format,
    Html,
    LayerLayout,
    Layout,
    McoreModel,
    Model,
    NoMtp,
    Output,
    PadVocab,
    Plain,
    PlainOutput,
    ReadAs,
    Reports,
    SourceRef,
    Strict,
    Target,
    TargetMcore,
    could_not_check,
    run,
    source_of,
)

if TYPE_CHECKING:
    from mtpconv.inventory.report import Report


@app.command()
def inventory(
    path: SourceRef,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """What a checkpoint holds, from its headers only."""

    def work() -> "Report":
        from mtpconv.convert.take_inventory import take_inventory
        from mtpconv.inventory.inventory import inventory_report

        return inventory_report(take_inventory(source_of(path)), listed=tensors)

    run("inventory", work, output, strict=False, debug=debug, reports=reports, html=html)


@app.command()
def plan(
    src: SourceRef,
    layer_layout: LayerLayout = Layout.auto,
    pad_vocab_to_multiple: PadVocab = None,
    no_mtp: NoMtp = False,
    target_mcore: TargetMcore = Target.auto,
    dtype: ReadAs = Dtype.bfloat16,
    mcore_model: McoreModel = Model.gpt,
    strict: Strict = False,
    output: Output = Format.text,
    reports: Reports = None,
    html: Html = None,
    debug: Debug = False,
) -> None:
    """The proof without bytes, both ways, from headers only.

    With the memory, disk and time that converting takes.
    """

    def work() -> "Report":
        from mtpconv.convert.plan_both import plan_both, plan_report
        from mtpconv.convert.prepare import Way

        hybrid = mcore_model is Model.hybrid
        way = Way(pad_vocab_to_multiple, no_mtp, False, target_mcore.release, dtype.value, hybrid)
        return plan_report(plan_both(source_of(src), way, layer_layout.value))

    run("plan", work, output, strict=strict, debug=debug, reports=reports, html=html)


@app.command()
def explain(
    src: SourceRef,
    tensor: Annotated[str, typer.Argument(metavar="TENSOR", show_default=False)],
    target_mcore: TargetMcore = Target.auto,
    mcore_model: McoreModel = Model.gpt,
    output: PlainOutput = Plain.text,
    debug: Debug = False,
) -> None:
    """The rule that carries one tensor of SRC.

    Named as either side names it.
    """
    try:
        from mtpconv.convert.explain import explain_json, explain_tensor, explain_text
        from mtpconv.convert.prepare import Way

        way = Way(target_mcore=target_mcore.release, hybrid=mcore_model is Model.hybrid)
        found = explain_tensor(source_of(src), tensor, way)
        print(explain_json(found) if output is Plain.json else explain_text(found))
    except Exception as error:
        could_not_check("explain", error, output, debug=debug)


@app.command()
def families(output: PlainOutput = Plain.text) -> None:
    """The model families that are converted.

    With what each needs of megatron-core.
    """
    from mtpconv.inventory.family_table import families_json, families_text

    print(families_json() if output is Plain.json else families_text())


@app.command()
def demo(debug: Debug = False) -> None:
    """A trained checkpoint there and back, then with MTP lost.

    Lost the way pipelines lose it, and caught.
    """
    try:
        from mtpconv.demo.run import demo as run_demo

        parts, code = run_demo()
        print("\n".join(parts))
    except Exception as error:
        could_not_check("demo", error, Format.text, debug=debug)
    raise typer.Exit(code)
