package containerd

import (
	"path/filepath"

	"github.com/containerd/containerd/v2/core/content"
	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/node/runtime/shim"
)

func readPID(dir string, p *process) error { return shim.ReadJSON(filepath.Join(dir, "pid.json"), p) }

func killProcess(pid int) error { return unix.Kill(pid, unix.SIGKILL) }

func withRef(ref string) content.WriterOpt { return content.WithRef(ref) }
