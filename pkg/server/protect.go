package server

import "os"

// oomScore is the kubelet's. The OOM killer kills this process only after all containers.
const oomScore = "-999"

// protect lowers the OOM score of this process, which runs everything. Without CAP_SYS_RESOURCE it has no effect.
func protect() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(oomScore), 0)
}
