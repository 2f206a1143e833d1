package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/base/version"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

var _ socket.Backend = (*process)(nil)

type parts struct {
	mu   sync.Mutex
	list []socket.Component
}

func (p *parts) add(components []run.Component) {
	for _, c := range components {
		p.list = append(p.list, socket.Component{Name: c.Name(), Problem: "waiting for the previous component"})
	}
}

func (p *parts) change(name string, f func(*socket.Component)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.list {
		if p.list[i].Name == name {
			f(&p.list[i])
		}
	}
}

func (p *parts) started(name string, took time.Duration) {
	p.change(name, func(c *socket.Component) { c.Ready, c.Took, c.Problem = true, took, "" })
}

func (p *parts) stopped(name string, err error) {
	p.change(name, func(c *socket.Component) {
		c.Ready, c.Problem = false, "stopped"
		if err != nil {
			c.Problem = err.Error()
		}
	})
}

func (p *parts) snapshot() []socket.Component {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]socket.Component{}, p.list...)
}

func (p *process) Status(ctx context.Context) socket.Status {
	began := p.began
	var pressure, others []string
	if p.node != nil {
		pressure, others = p.node.agent.Pressure(), p.node.agent.OtherNodes()
	}
	var disk unix.Statfs_t
	_ = unix.Statfs(p.DataDir, &disk) // unknown is 0, and not shown
	var warnings []string
	if p.store != nil {
		if w := p.store.Warning(); w != "" {
			warnings = append(warnings, "the store is nearly full: "+w)
		}
	}
	if p.plane != nil {
		if w := p.plane.snapshots.Warning(); w != "" {
			warnings = append(warnings, w)
		}
		warnings = append(warnings, p.plane.encryption.Warnings()...)
	}
	url := p.url
	if p.servers != nil {
		url = "https://" + p.servers.Current()
	}
	return socket.Status{
		Running: true, Version: version.Coracle, PID: os.Getpid(), StartedAt: &began,
		Server: url, Node: p.NodeName, NodeIP: p.NodeIP, DataDir: p.DataDir, RunDir: p.RunDir,
		Kubeconfig: p.kubeconfig, Join: p.joinCommand, Joined: p.joined(ctx),
		DiskFree: int64(disk.Bavail) * disk.Bsize, DiskSize: int64(disk.Blocks) * disk.Bsize, OtherNodes: others,
		Pressure: pressure, Warnings: warnings, Components: p.parts.snapshot(),
		Processes: processes("/proc", p.DataDir, p.RunDir),
	}
}

func (p *process) Images() runtime.Images {
	if p.node == nil {
		return nil
	}
	return p.node.runtime.Images()
}

func (p *process) Stop(ctx context.Context, progress func(string)) error {
	defer p.stop()
	if p.plane != nil && p.ShutdownDelay > 0 {
		progress(fmt.Sprintf("serving for another %s, while /readyz fails", p.ShutdownDelay))
		p.linger(ctx)
	}
	if p.node == nil {
		return nil
	}
	return stopPods(ctx, p.node.agent, progress)
}

// processes returns this process and the shims whose executables are in dataDir or runDir, with their memory. proc
// is /proc. It does not read command lines: that takes the lock of the process's memory map, which a throttled pod
// can hold for a long time.
func processes(proc, dataDir, runDir string) []socket.Process {
	list := []socket.Process{{PID: os.Getpid(), Name: "coracle", PSS: pss(proc, os.Getpid())}}
	links, _ := filepath.Glob(filepath.Join(proc, "[0-9]*/exe"))
	for _, link := range links {
		exe, err := os.Readlink(link)
		if err != nil || !strings.HasPrefix(exe, dataDir+"/") && !strings.HasPrefix(exe, runDir+"/") {
			continue // has exited, or is not a shim of this instance
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil && pid != os.Getpid() {
			list = append(list, socket.Process{PID: pid, Name: "shim", PSS: pss(proc, pid)})
		}
	}
	return list
}

// pss returns the proportional set size of a process in bytes, or 0 if it has exited.
func pss(proc string, pid int) int64 {
	data, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "Pss:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}
