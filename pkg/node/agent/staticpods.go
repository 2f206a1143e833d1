package agent

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// startStatic starts the static pods, without an API server. Call it before pods.Sync, which releases orphans.
func (a *Agent) startStatic(ctx context.Context, spawn func(func() error)) {
	if a.static == nil {
		return
	}
	a.restoreRange(ctx)
	a.static.Start()
	spawn(func() error { a.guard.Loop(ctx, "static pods", a.static.Run); return nil })
}

func (a *Agent) staticEnded(uid types.UID) {
	if a.static != nil {
		a.static.Ended(uid)
	}
}

// mirrorSeen and mirrorGone handle mirror pods. The agent never runs them, even without static pods: any user who may
// create pods could create one.
func (a *Agent) mirrorSeen(p *corev1.Pod) {
	if a.static != nil {
		a.static.Seen(p)
	}
}

func (a *Agent) mirrorGone(p *corev1.Pod) {
	if a.static != nil {
		a.static.Gone(p)
	}
}

// admittingNode returns the node that pods are admitted against; before its registration without others' labels.
func (a *Agent) admittingNode() *corev1.Node {
	if n := a.registered(); n != nil {
		return n
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: a.c.NodeName, Labels: a.labels()},
		Status:     corev1.NodeStatus{Allocatable: a.allocatable()},
	}
}

// admits reports whether pods of the API may start: the Node must first confirm a stored pod range.
func (a *Agent) admits() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.node != nil && (!a.kept || a.cidr.IsValid())
}

// maxRange is the maximum size of the pod range's file, in bytes.
const maxRange = 64

// RangeFile is a file in the data directory with the pod range of the node. It exists once the node has one.
const RangeFile = "pod-range"

func (a *Agent) rangeFile() string { return filepath.Join(a.c.DataDir, RangeFile) }

// keepRange stores the node's pod range for the next process, whose static pods may start without an API server.
func (a *Agent) keepRange(p netip.Prefix) {
	if err := atomicfile.WriteDurably(a.rangeFile(), []byte(p.String()+"\n")); err != nil {
		a.log.Warn("could not store the node's pod range, static pods will wait for an API server after the next boot",
			"error", err)
	}
}

// StoredRange returns the node's pod range from RangeFile of an agent's data directory.
func StoredRange(dataDir string) (netip.Prefix, error) {
	data, err := bounded.File(filepath.Join(dataDir, RangeFile), maxRange)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.ParsePrefix(strings.TrimSpace(string(data)))
}

// restoreRange passes the stored pod range to the network.
func (a *Agent) restoreRange(ctx context.Context) {
	if a.c.OnPodCIDR == nil {
		return
	}
	p, err := StoredRange(a.c.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = limits{a.c.ClusterCIDR, a.c.ServiceCIDR}.check(p)
	}
	if err == nil {
		err = a.c.OnPodCIDR(ctx, p)
	}
	if err != nil {
		a.log.Warn("could not use the stored pod range, static pods wait for an API server", "file", a.rangeFile(), "error",
			err)
		return
	}
	a.mu.Lock()
	a.kept = true
	a.mu.Unlock()
}
