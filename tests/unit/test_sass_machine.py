"""Option files are read as Accel-Sim reads them, and a datasheet gives a machine too."""

import pytest
from cascade_schemas.gpu import known_gpus, load_gpu

from services.simworker.simulators.sass.generated import machine_of_gpu
from services.simworker.simulators.sass.machine import machine_of
from services.simworker.simulators.sass.options import BadConfig, parse_options, read_options

TINY = {
    "gpgpu_clock_domains": "1000:1000:1000:500",
    "gpgpu_n_clusters": "2",
    "gpgpu_n_mem": "2",
    "gpgpu_shader_core_pipeline": "1024:32",
    "gpgpu_cache:dl1": "S:4:128:64,L:T:m:L:L,A:256:8,16:0,32",
    "gpgpu_cache:dl2": "S:32:128:16,L:B:m:L:P,A:192:4,32:0,32",
}


def test_the_last_value_counts_and_comments_and_quotes_over_lines_do_not_confuse():
    options = parse_options('-a 1 # -a 3\n-a 2\n-t "nbk=16:CCD=1:\n   RCD=12"\n#-b 5\n-c -1\n')
    assert options == {"a": "2", "t": "nbk=16:CCD=1:RCD=12", "c": "-1"}


def test_units_beyond_one_per_scheduler_shorten_the_initiation():
    spec = {"specialized_unit_3": "1,8,32,4,4,TENSOR", "trace_opcode_latency_initiation_spec_op_3": "32,32"}
    machine = machine_of(TINY | {"gpgpu_num_sched_per_core": "4"} | spec)
    assert (machine.latency[6], machine.initiation[6]) == (32, 16)


def test_a_missing_special_unit_is_named_and_gets_a_latency():
    machine = machine_of(TINY)
    assert "spec_op_4" in machine.absent
    assert machine.latency[7] == 4


@pytest.mark.parametrize(
    "change, complaint",
    [
        ({"gpgpu_n_clusters": ""}, "-gpgpu_n_clusters is missing"),
        ({"gpgpu_n_mem": "many"}, "-gpgpu_n_mem 'many'"),
        ({"gpgpu_n_mem": "0"}, "-gpgpu_n_mem 0: must be above 0"),
        ({"gpgpu_clock_domains": "1:2"}, "-gpgpu_clock_domains '1:2': is not 4 numbers"),
        ({"gpgpu_cache:dl2": "none"}, "-gpgpu_cache:dl2 'none'"),
        ({"gpgpu_l1_banks": "3"}, "-gpgpu_l1_banks 3"),
    ],
)
def test_a_bad_option_is_named_with_its_value(change, complaint):
    with pytest.raises(BadConfig) as caught:
        machine_of(TINY | change)
    assert complaint in str(caught.value)


def test_a_folder_without_options_says_what_is_missing(tmp_path):
    with pytest.raises(BadConfig, match=r"has no gpgpusim\.config"):
        read_options(tmp_path)


def test_every_recorded_config_is_a_machine(shared):
    for folder in sorted((shared / "data" / "accelsim" / "logs" / "configs").iterdir()):
        machine = machine_of(read_options(folder))
        assert machine.sm_count > 10, folder.name


@pytest.mark.parametrize("gpu", [name for name in known_gpus() if load_gpu(name).vendor == "nvidia"])
def test_a_datasheet_gives_its_own_rates(gpu):
    spec = load_gpu(gpu)
    machine = machine_of_gpu(spec)
    per_clock = 2 * 16 * 8 * 16 * machine.schedulers / machine.initiation[6] * machine.sm_count
    assert per_clock * machine.core_hz == pytest.approx(spec.bf16_flop_per_s, rel=0.35)  # initiations are whole cycles
    sectors_per_s = machine.channels * machine.dram_hz / machine.dram_atom_clocks
    assert sectors_per_s * 32 == pytest.approx(spec.dram_bytes_per_s, rel=1e-6)
