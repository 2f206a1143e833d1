package volumesnapshot

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
)

// world has the API server's rules: updates need the newest version, and finalizers delay deletion. driver are the
// snapshots that the driver has taken, by content.
type world struct {
	snapshots map[string]*snapshots.VolumeSnapshot
	contents  map[string]*snapshots.VolumeSnapshotContent
	claims    map[string]*corev1.PersistentVolumeClaim
	classes   []*snapshots.VolumeSnapshotClass
	restoring string // a claim is being restored from this snapshot
	driver    map[string]bool
	version   int
}

func store[T client.Object](w *world, all map[string]T, o T) {
	if have, ok := all[o.GetName()]; !ok || have.GetUID() != o.GetUID() ||
		have.GetResourceVersion() != o.GetResourceVersion() {
		return
	}
	w.version++
	o.SetResourceVersion(fmt.Sprint(w.version))
	all[o.GetName()] = o
	if o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 {
		delete(all, o.GetName())
	}
}

func remove[T client.Object](w *world, all map[string]T, o T) {
	o.SetDeletionTimestamp(&metav1.Time{})
	store(w, all, o)
}

// plan plans an object. The key selects its kind: 0 snapshot, 1 content, 2 claim.
func (w *world) plan(key int, name string) Step {
	switch key {
	case 0:
		v := w.snapshots[name]
		s := State{Snapshot: v, Content: w.contents[contentOf(v)], Claim: w.claims["c"], Volume: volume(), Classes: w.classes}
		if s.Claim != nil {
			s.Volume.Spec.ClaimRef.UID = s.Claim.UID
		}
		if w.restoring == name {
			s.Restoring = []string{"d"}
		}
		return PlanSnapshot(s, now)
	case 1:
		return PlanContent(w.contents[name])
	}
	var all []*snapshots.VolumeSnapshot
	for _, v := range w.snapshots {
		if v.Spec.Source.PersistentVolumeClaimName != nil {
			all = append(all, v)
		}
	}
	return PlanClaim(w.claims[name], all)
}

func (w *world) apply(s Step) {
	switch s.Op {
	case UpdateSnapshot, UpdateSnapshotStatus:
		store(w, w.snapshots, s.Snapshot.DeepCopy())
	case CreateContent:
		if w.contents[s.Content.Name] == nil {
			w.version++
			c := s.Content.DeepCopy()
			c.UID, c.ResourceVersion = types.UID(fmt.Sprint("content-", w.version)), fmt.Sprint(w.version)
			w.contents[c.Name] = c
		}
	case UpdateContent:
		store(w, w.contents, s.Content.DeepCopy())
	case DeleteContent:
		if have := w.contents[s.Content.Name]; have != nil && have.UID == s.Content.UID {
			remove(w, w.contents, have.DeepCopy())
		}
	case UpdateClaim:
		store(w, w.claims, s.Claim.DeepCopy())
	case Nothing:
	}
}

// sidecar is one step of a driver's csi-snapshotter.
func (w *world) sidecar(name string) bool {
	c := w.contents[name].DeepCopy()
	switch {
	case c.DeletionTimestamp != nil && controllerutil.ContainsFinalizer(c, snapshots.ContentFinalizer) &&
		metav1.HasAnnotation(c.ObjectMeta, snapshots.DeletingAnnotation):
		if c.Spec.DeletionPolicy == snapshots.Delete {
			delete(w.driver, name)
		}
		controllerutil.RemoveFinalizer(c, snapshots.ContentFinalizer)
	case c.DeletionTimestamp == nil && c.Status == nil && c.Spec.VolumeSnapshotRef.UID != "":
		if c.Spec.Source.VolumeHandle != nil {
			w.driver[name] = true
		}
		taken(c)
	default:
		return false
	}
	store(w, w.contents, c)
	return true
}

// TestModel: whatever users, the driver and interrupted reconcilers do in any order, no driver's snapshot lacks
// its content, a ready snapshot has its own content, and a claim remains while a snapshot of it is being taken. In
// the end nothing is left to do.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			snapshots: map[string]*snapshots.VolumeSnapshot{}, contents: map[string]*snapshots.VolumeSnapshotContent{},
			claims: map[string]*corev1.PersistentVolumeClaim{},
			driver: map[string]bool{"content": true}, classes: []*snapshots.VolumeSnapshotClass{class("class")},
		}
		policy := rapid.SampledFrom([]snapshots.DeletionPolicy{snapshots.Delete, snapshots.Retain}).Draw(t, "policy")
		w.classes[0].DeletionPolicy = policy
		names := []string{"x", "y", "z"}
		var underWay []Step
		made := func(o client.Object) {
			w.version++
			o.SetUID(types.UID(fmt.Sprint("uid-", w.version)))
			o.SetResourceVersion(fmt.Sprint(w.version))
		}
		check := func() {
			for name := range w.driver {
				require.True(t, name == "content" || w.contents[name] != nil, "the driver's snapshot %s is forgotten", name)
			}
			for _, v := range w.snapshots {
				c := w.contents[contentOf(v)]
				if ready(v) && v.DeletionTimestamp == nil && c != nil {
					require.True(t, boundTo(c, v), "ready by another's content")
				}
				if c != nil && c.Status == nil && c.DeletionTimestamp == nil && v.DeletionTimestamp == nil &&
					c.Spec.Source.VolumeHandle != nil {
					require.NotNil(t, w.claims["c"], "the claim went while a snapshot of it was being taken")
				}
			}
		}
		keys := func() (out []string) {
			for i, all := range [][]string{
				slices.Sorted(maps.Keys(w.snapshots)), slices.Sorted(maps.Keys(w.contents)), slices.Sorted(maps.Keys(w.claims)),
			} {
				for _, name := range all {
					out = append(out, fmt.Sprint(i, name))
				}
			}
			return out
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"claim": func(*rapid.T) {
				if w.claims["c"] == nil {
					c := claim("c")
					made(c)
					w.claims["c"] = c
				}
			},
			"snapshot": func(t *rapid.T) {
				if name := rapid.SampledFrom(names).Draw(t, "name"); w.snapshots[name] == nil {
					v := snapshot(name, func(v *snapshots.VolumeSnapshot) { v.Finalizers = nil })
					if rapid.Bool().Draw(t, "existing") {
						existing(v)
					}
					made(v)
					w.snapshots[name] = v
				}
			},
			"content": func(t *rapid.T) {
				if w.contents["content"] == nil {
					v := snapshot(rapid.SampledFrom(names).Draw(t, "for"), existing)
					c := content(v, handle, unbound, func(c *snapshots.VolumeSnapshotContent) {
						c.Finalizers, c.Spec.DeletionPolicy = nil, policy
					})
					made(c)
					w.contents["content"] = c
				}
			},
			"delete": func(t *rapid.T) {
				if v := w.snapshots[rapid.SampledFrom(names).Draw(t, "name")]; v != nil {
					remove(w, w.snapshots, v.DeepCopy())
				}
			},
			"delete claim": func(*rapid.T) {
				if c := w.claims["c"]; c != nil {
					remove(w, w.claims, c.DeepCopy())
				}
			},
			"restore": func(t *rapid.T) { w.restoring = rapid.SampledFrom(append(names, "")).Draw(t, "from") },
			"driver": func(t *rapid.T) {
				if len(w.contents) > 0 {
					w.sidecar(rapid.SampledFrom(slices.Sorted(maps.Keys(w.contents))).Draw(t, "content"))
				}
			},
			"plan": func(t *rapid.T) {
				if all := keys(); len(all) > 0 {
					key := rapid.SampledFrom(all).Draw(t, "of")
					step := w.plan(int(key[0]-'0'), key[1:])
					if rapid.Bool().Draw(t, "interrupted") {
						underWay = append(underWay, step)
					} else {
						w.apply(step)
					}
				}
			},
			"finish": func(t *rapid.T) {
				if len(underWay) > 0 {
					i := rapid.IntRange(0, len(underWay)-1).Draw(t, "which")
					w.apply(underWay[i])
					underWay = slices.Delete(underWay, i, i+1)
				}
			},
		})
		// Without further changes, it settles.
		w.restoring = ""
		for range 100 {
			busy := false
			for _, key := range keys() {
				i, name := int(key[0]-'0'), key[1:]
				if i == 0 && w.snapshots[name] == nil || i == 1 && w.contents[name] == nil || i == 2 && w.claims[name] == nil {
					continue // deleted since
				}
				step := w.plan(i, name)
				busy = busy || step.Op != Nothing
				w.apply(step)
			}
			for _, name := range slices.Sorted(maps.Keys(w.contents)) {
				busy = w.sidecar(name) || busy
			}
			check()
			if busy {
				continue
			}
			for _, v := range w.snapshots {
				require.Nil(t, v.DeletionTimestamp, "%s stays", v.Name)
			}
			for _, c := range w.claims {
				require.Nil(t, c.DeletionTimestamp, "the claim stays")
			}
			return
		}
		t.Fatalf("it does not settle")
	})
}

func boundTo(c *snapshots.VolumeSnapshotContent, v *snapshots.VolumeSnapshot) bool {
	return c.Spec.VolumeSnapshotRef.UID == v.UID
}
