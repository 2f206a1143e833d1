package containerd

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

const maxPressure = 4096 // bytes of a file, which has two lines

// PodPressure implements runtime.Runtime.
func (r *Runtime) PodPressure(_ context.Context, cgroup string) *runtime.Pressure {
	if !cgroup2() {
		return nil
	}
	return pressure(filepath.Join(hierarchy("memory"), filepath.Clean("/"+cgroup)))
}

func pressure(dir string) *runtime.Pressure {
	p := new(runtime.Pressure)
	for name, s := range map[string]*runtime.Stalls{"cpu": &p.CPU, "memory": &p.Memory, "io": &p.IO} {
		text, err := bounded.File(filepath.Join(dir, name+".pressure"), maxPressure)
		if err != nil {
			return nil
		}
		*s = stalls(string(text))
	}
	return p
}

// stalls parses a file of the kernel's Documentation/accounting/psi.rst. Before Linux 5.13, cpu has no line "full".
func stalls(text string) (s runtime.Stalls) {
	for line := range strings.Lines(text) {
		kind, figures, _ := strings.Cut(line, " ")
		var at runtime.Stall
		n, _ := fmt.Sscanf(figures, "avg10=%g avg60=%g avg300=%g total=%d", &at.Avg10, &at.Avg60, &at.Avg300, &at.Total)
		at.Total *= time.Microsecond
		if n == 4 && kind == "some" {
			s.Some = at
		} else if n == 4 && kind == "full" {
			s.Full = at
		}
	}
	return s
}
