"""``jztree tree``: merger trees of the subhaloes in a sequence of catalogues."""

from argparse import Namespace

from ... import io, trees
from .._report import is_quiet, print_json, print_pairs, say, stage, take_seconds
from .argument_checks import check_arguments
from .outputs import check_placeholders, check_suffix


def run_tree(args: Namespace) -> None:
    """Link the subhaloes of catalogues, and write their merger trees.

    Raises:
        ValueError, OSError: If an argument is invalid, or a file cannot be used. The message is a sentence for the
            user.
    """
    check_arguments(args)
    check_suffix(args.output)
    check_placeholders(args.output)
    catalogues = trees.find_catalogues(args.input)
    inputs = [part for path in catalogues.values() for part in io.find_catalogue_parts(path)]
    io.check_output(args.output, apart_from=tuple(inputs))
    if args.dry_run:
        say(f"would link {len(catalogues)} catalogues and write {args.output} in the layout {args.layout}")
        if args.json:
            print_json({"catalogues": list(map(str, catalogues.values())), "output": args.output})
        return
    with stage("link the subhaloes") as report:
        result = trees.trees_of_catalogues(catalogues, ptype=args.type, weights=args.weights, skip=not args.no_skip)
        report.detail = f"{len(catalogues)} outputs"
    with stage("write the trees") as report:
        trees.write_trees(args.output, *result, layout=args.layout)
        report.detail = args.output
    forest = result.trees
    numbers = {
        "outputs": len(catalogues),
        "subhalos": len(forest),
        "trees": forest.num_trees,
        "links": int((forest.descendant >= 0).sum()),
        "links that skip an output": int(forest.skips.sum()),
    }
    if args.json:
        print_json({"output": args.output, "layout": args.layout, "seconds": take_seconds()} | numbers)
    elif not is_quiet():
        say()
        print_pairs([(name, f"{value:,}") for name, value in numbers.items()])
