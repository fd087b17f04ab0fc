"""What the metrics of other exporters mean: one literal table for each exporter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

PERCENT: Final = 0.01
WHOLE: Final = 1.0


class Table(NamedTuple):
    """One exporter. A metric's reading and factor; several metrics of a reading: the first there counts.

    ``place`` (the index), ``uuid``, ``name``, ``driver``, ``pid`` are labels; ``parts`` are labels that tell
    a part of a device from the whole, with the value that still means the whole. ``ascend``: its zeros need
    doubt. ``waiting_known``: see GpuInfo.
    """

    exporter: str
    prefixes: tuple[str, ...]
    place: tuple[str, ...]
    uuid: tuple[str, ...]
    name: tuple[str, ...]
    driver: tuple[str, ...]
    parts: Mapping[str, str]
    readings: Mapping[str, tuple[str, float]]
    processes: str | None = None
    pid: str = ""
    ascend: bool = False
    waiting_known: bool = False


TABLES: Final = (
    Table(
        exporter="dcgm-exporter",
        prefixes=("DCGM_FI_",),
        place=("gpu",),
        uuid=("UUID",),
        name=("modelName",),
        driver=("DCGM_FI_DRIVER_VERSION",),
        parts={"GPU_I_ID": ""},
        readings={
            "DCGM_FI_DEV_GPU_UTIL": ("util", PERCENT),
            "DCGM_FI_DEV_MEM_COPY_UTIL": ("mem_util", PERCENT),
            "DCGM_FI_DEV_POWER_USAGE": ("power_w", WHOLE),
            "DCGM_FI_PROF_SM_ACTIVE": ("sm", WHOLE),
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor", WHOLE),
            "DCGM_FI_PROF_DRAM_ACTIVE": ("dram", WHOLE),
            "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": ("limit_w", WHOLE),
            "DCGM_FI_DEV_POWER_MGMT_LIMIT": ("limit_w", WHOLE),
        },
        waiting_known=True,
    ),
    Table(
        exporter="npu-exporter",
        prefixes=("npu_chip_info_",),
        place=("id", "npuID"),
        uuid=("vdie_id", "uuid"),
        name=("model_name", "modelName", "name"),
        driver=(),
        parts={},
        readings={
            "npu_chip_info_overall_utilization": ("util", PERCENT),
            "npu_chip_info_cube_utilization": ("tensor", PERCENT),
            "npu_chip_info_utilization": ("tensor", PERCENT),  # AI Core
            "npu_chip_info_vector_utilization": ("sm", PERCENT),
            "npu_chip_info_hbm_bandwidth_utilization": ("dram", PERCENT),
            "npu_chip_info_power": ("power_w", WHOLE),
        },
        processes="npu_chip_info_process_info",
        pid="process_id",
        ascend=True,
    ),
    Table(
        exporter="device-metrics-exporter",
        # Where it is configured so, it puts amd_ before every name; older releases write capitals.
        prefixes=("gpu_", "amd_gpu_", "GPU_"),
        place=("gpu_id",),
        uuid=("gpu_uuid", "serial_number"),
        name=("card_series", "card_model"),
        driver=("driver_version",),
        parts={"gpu_partition_id": "0"},
        readings={
            "gpu_gfx_activity": ("util", PERCENT),
            "gpu_umc_activity": ("mem_util", PERCENT),
            "gpu_package_power": ("power_w", WHOLE),
            "gpu_average_package_power": ("power_w", WHOLE),
            "gpu_power_usage": ("power_w", WHOLE),
        },
    ),
)


def plain_name(table: Table, name: str) -> str:
    """Return a metric's name as the table has it."""
    if table.prefixes[0] != "gpu_":
        return name
    return name.lower().removeprefix("amd_")
