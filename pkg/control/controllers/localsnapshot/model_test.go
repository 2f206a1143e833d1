package localsnapshot

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/apis/storage"
)

// world has one content and the snapshots on nodes.
type world struct {
	content *snapshots.VolumeSnapshotContent // nil once it is deleted
	volume  *corev1.PersistentVolume
	nodes   map[string]*corev1.Node
	taken   map[string]bool // by handle
	version int
}

func (w *world) state() State {
	s := State{Content: w.content, Volume: w.volume}
	for _, n := range w.nodes {
		s.Nodes = append(s.Nodes, n)
	}
	return s
}

// write stores a content unless it was written since it was read.
func (w *world) write(next *snapshots.VolumeSnapshotContent) {
	if w.content == nil || next == nil || next.ResourceVersion != w.content.ResourceVersion {
		return
	}
	w.version++
	next = next.DeepCopy()
	next.ResourceVersion = fmt.Sprint(w.version)
	w.content = next
	if next.DeletionTimestamp != nil && len(next.Finalizers) == 0 {
		w.content = nil
	}
}

// apply carries out a step for the content as it was read. lost means that the process ends before it writes the
// node's answer.
func (w *world) apply(c *snapshots.VolumeSnapshotContent, step Step, now func() bool) {
	lost := now()
	release := c.DeepCopy()
	controllerutil.RemoveFinalizer(release, snapshots.ContentFinalizer)
	switch step.Op {
	case Begin:
		if !lost {
			w.write(begun(c, step.Node))
		}
	case Take:
		w.taken[storage.Handle(step.Node.Name, step.Snapshot)] = true
		if !lost {
			w.write(taken(c, step.Node, step.Snapshot, storage.Snapshot{}))
		}
	case Remove:
		if step.Node != nil {
			delete(w.taken, storage.Handle(step.Node.Name, step.Snapshot))
		}
		if !lost {
			w.write(release)
		}
	case Release:
		if !lost {
			w.write(release)
		}
	case Fail:
		if !lost {
			w.write(failed(c, step.Error, metav1.Now().Time))
		}
	case Find, Nothing:
	}
}

// TestModel: whatever users, nodes, other reconcilers and interrupted attempts do, an existing node has no
// snapshot without its content, and a snapshot that its policy deletes is removed in the end.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			nodes:  map[string]*corev1.Node{"a": node("a")},
			taken:  map[string]bool{},
			volume: storage.NewVolume(claim("c", "1Gi"), class, node("a")),
		}
		w.content = content(func(c *snapshots.VolumeSnapshotContent) {
			c.Spec.DeletionPolicy = rapid.SampledFrom([]snapshots.DeletionPolicy{snapshots.Delete, snapshots.Retain}).Draw(t,
				"policy")
		})
		policy := w.content.Spec.DeletionPolicy
		check := func() {
			if w.nodes["a"] != nil && w.content == nil && policy == snapshots.Delete {
				require.Empty(t, w.taken, "a snapshot is forgotten")
			}
			if w.content != nil && w.content.DeletionTimestamp == nil && w.content.Status != nil &&
				w.content.Status.SnapshotHandle != nil {
				require.True(t, w.taken[*w.content.Status.SnapshotHandle], "it says that it was taken")
			}
		}
		change := func(f func(*snapshots.VolumeSnapshotContent)) func(*rapid.T) {
			return func(*rapid.T) {
				if w.content != nil {
					next := w.content.DeepCopy()
					f(next)
					w.write(next)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"plan": func(t *rapid.T) {
				if w.content != nil {
					w.apply(w.content, PlanContent(w.state()), func() bool { return rapid.Bool().Draw(t, "lost") })
				}
			},
			"told": change(func(c *snapshots.VolumeSnapshotContent) {
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, snapshots.DeletingAnnotation, "yes")
			}),
			"volume goes": func(*rapid.T) { w.volume = nil },
			"delete":      change(func(c *snapshots.VolumeSnapshotContent) { c.DeletionTimestamp = &metav1.Time{} }),
		})
		for range 10 {
			if w.content != nil {
				w.apply(w.content, PlanContent(w.state()), func() bool { return false })
			}
			check()
		}
		if w.content != nil {
			if step := PlanContent(w.state()); step.Op != Nothing {
				require.Equal(t, Fail, step.Op, "it does not settle")
				require.Nil(t, failed(w.content, step.Error, metav1.Now().Time), "its status says it")
			}
			_, told := w.content.Annotations[snapshots.DeletingAnnotation]
			require.False(t, told && w.content.DeletionTimestamp != nil, "it stays")
		}
	})
}
