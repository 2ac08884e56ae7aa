"""Makes torchvision's GPU wheel importable next to torch for CPUs: its compiled operators do not
load there, and its Python looks them up by name ("operator torchvision::nms does not exist"). Their
schemas are declared just before that.

`make compat` puts this file, and a .pth file that imports it, into the programs' environment.
autotune is not involved.
"""

import sys

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_kept = []  # a library's schemas disappear with it


class _BeforeItsOperators:
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision._meta_registrations":
            sys.meta_path.remove(self)
            import torch

            if not hasattr(torch.ops.torchvision, "nms"):
                library = torch.library.Library("torchvision", "DEF")
                for schema in SCHEMAS:
                    library.define(schema)
                _kept.append(library)


sys.meta_path.insert(0, _BeforeItsOperators())
