package containerd

import (
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/agent/runtime/shim"
)

func readPID(dir string, p *process) error { return shim.ReadJSON(filepath.Join(dir, "pid.json"), p) }

func killProcess(pid int) error { return unix.Kill(pid, unix.SIGKILL) }
