package static

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// TestPodsAreCalledWithoutTheLock checks that a slow start does not delay mirrors and other pods, and keeps the order.
func TestPodsAreCalledWithoutTheLock(t *testing.T) {
	r := newRig(t)
	r.start()
	r.write("a.yaml", manifestOf("a", "one"))
	r.until("it runs", func() bool { return r.named("a-node") != nil })
	a := r.pod("a-node").UID
	require.NoError(t, os.Remove(filepath.Join(r.dir, "a.yaml")))
	r.until("it stops", func() bool { return r.stopped[a] })
	var during State
	r.onStart = func() {
		r.onStart = nil
		during = r.m.state()
		r.ends(a)
	}
	r.write("b.yaml", manifestOf("b", "one"))
	r.until("the other one runs", func() bool { return r.named("b-node") != nil })
	require.NotContains(t, during.Pods, types.NamespacedName{Namespace: "default", Name: "b-node"},
		"nobody can give it its mirror yet")
	r.write("a.yaml", manifestOf("a", "one"))
	r.until("the end was noticed", func() bool { return r.named("a-node") != nil })
	r.until("both have mirrors", func() bool { return len(r.mirrors) == 2 })
}

// TestTwoLeftOfOneName checks that one of two leftover pods is stopped, and that the manifest's pod runs in the end.
func TestTwoLeftOfOneName(t *testing.T) {
	r := newRig(t)
	stop := r.start()
	r.write("a.yaml", manifestOf("a", "one"))
	r.until("it runs", func() bool { return r.named("a-node") != nil })
	stop()
	name := nameOf(r.pod("a-node"))
	r.left["0"], r.left["z"] = Left{name, "a.yaml"}, Left{name, "a.yaml"}
	r.nextProcess()
	require.Len(t, r.stops(), 3, "the first one is not the manifest's either")
	for uid := range r.stops() {
		r.ends(uid)
	}
	r.until("it runs", func() bool { return r.named("a-node") != nil })
}

// TestRestart checks that a pod that has ended with its manifest unchanged can be run again.
func TestRestart(t *testing.T) {
	r := newRig(t)
	r.start()
	r.write("a.yaml", manifestOf("a", "one"))
	r.write("b.yaml", manifestOf("b", "one"))
	r.until("both run", func() bool { return r.named("a-node") != nil && r.named("b-node") != nil })
	a := r.pod("a-node").UID
	r.m.Restart([]types.UID{a, "nobody"})
	r.m.Restart([]types.UID{a})
	r.until("it stops", func() bool { return r.stopped[a] })
	require.Len(t, r.stops(), 1)
	r.ends(a)
	r.until("it runs again", func() bool { return r.named("a-node") != nil && !r.stopped[a] })
	r.until("both have mirrors", func() bool { return len(r.mirrors) == 2 })
}
