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

// groupWorld is a world with groups. groupsOfDriver are the groups that the driver has taken, by content.
type groupWorld struct {
	world
	groups         map[string]*snapshots.VolumeGroupSnapshot
	groupContents  map[string]*snapshots.VolumeGroupSnapshotContent
	groupsOfDriver map[string]bool
	sources        map[string]Source
	class          *snapshots.VolumeGroupSnapshotClass
}

func (w *groupWorld) made(o client.Object) {
	w.version++
	o.SetUID(types.UID(fmt.Sprint("uid-", w.version)))
	o.SetResourceVersion(fmt.Sprint(w.version))
}

// objects returns the kinds and names of the objects to plan.
func (w *groupWorld) objects() (out []string) {
	for kind, names := range map[string][]string{
		"group": slices.Sorted(maps.Keys(w.groups)), "groupcontent": slices.Sorted(maps.Keys(w.groupContents)),
		"snapshot": slices.Sorted(maps.Keys(w.snapshots)), "content": slices.Sorted(maps.Keys(w.contents)),
	} {
		for _, name := range names {
			out = append(out, kind+" "+name)
		}
	}
	slices.Sort(out)
	return out
}

func (w *groupWorld) planOf(object string) Step {
	var kind, name string
	_, _ = fmt.Sscan(object, &kind, &name)
	switch kind {
	case "group":
		if g := w.groups[name]; g != nil {
			return PlanGroup(w.groupState(g), now)
		}
	case "groupcontent":
		if c := w.groupContents[name]; c != nil {
			return PlanGroupContent(c)
		}
	case "snapshot":
		if v := w.snapshots[name]; v != nil {
			s := State{Snapshot: v, Content: w.contents[contentOf(v)]}
			if of, uid := groupOf(v); w.groups[of] != nil && w.groups[of].UID == uid {
				s.Group = w.groups[of]
			}
			if w.restoring == name {
				s.Restoring = []string{"d"}
			}
			return PlanSnapshot(s, now)
		}
	case "content":
		if c := w.contents[name]; c != nil {
			return PlanContent(c)
		}
	}
	return Step{}
}

func (w *groupWorld) groupState(g *snapshots.VolumeGroupSnapshot) GroupState {
	s := GroupState{
		Group:     g,
		Content:   w.groupContents[groupContentOf(g)],
		Classes:   []*snapshots.VolumeGroupSnapshotClass{w.class},
		Snapshots: w.snapshots,
		Contents:  w.contents,
		Volumes:   map[string]*corev1.PersistentVolume{},
	}
	for _, name := range slices.Sorted(maps.Keys(w.sources)) {
		s.Sources = append(s.Sources, w.sources[name])
		s.Volumes["disk-"+name] = w.sources[name].Volume
	}
	s.Selected = len(s.Sources)
	if g.DeletionTimestamp != nil {
		s.Snapshots = map[string]*snapshots.VolumeSnapshot{}
		for name, v := range w.snapshots {
			if owned(v, g) {
				s.Snapshots[name] = v
				if w.restoring == name {
					s.Restoring = []string{"d"}
				}
			}
		}
	}
	return s
}

// applyGroup carries out a step. A kill may interrupt a step with several writes.
func (w *groupWorld) applyGroup(s Step, killed func() bool) {
	switch s.Op {
	case UpdateGroup, UpdateGroupStatus:
		store(&w.world, w.groups, s.Group.DeepCopy())
	case CreateGroupContent:
		if w.groupContents[s.GroupContent.Name] == nil {
			c := s.GroupContent.DeepCopy()
			w.made(c)
			w.groupContents[c.Name] = c
		}
	case UpdateGroupContent:
		store(&w.world, w.groupContents, s.GroupContent.DeepCopy())
	case DeleteGroupContent:
		remove(&w.world, w.groupContents, w.groupContents[s.GroupContent.Name].DeepCopy())
	case WriteMembers:
		for _, m := range s.Members {
			if !killed() {
				w.applyGroup(m, killed)
			}
		}
	case CreateSnapshot:
		if w.snapshots[s.Snapshot.Name] == nil {
			v := s.Snapshot.DeepCopy()
			w.made(v)
			w.snapshots[v.Name] = v
		}
	case DeleteSnapshot:
		remove(&w.world, w.snapshots, w.snapshots[s.Snapshot.Name].DeepCopy())
	case UpdateContentStatus:
		store(&w.world, w.contents, s.Content.DeepCopy())
	default:
		w.apply(s)
	}
}

// driverStep is one step of a driver's csi-snapshotter. take returns the outcome of a new group snapshot.
func (w *groupWorld) driverStep(t require.TestingT, name string, take func() string) bool {
	if c := w.contents[name]; c != nil {
		require.False(t,
			c.Spec.Source.VolumeHandle != nil && c.Status == nil && c.Annotations[snapshots.GroupHandleAnnotation] == "",
			"the driver is asked for a group's snapshot again")
		if c.Status == nil && c.DeletionTimestamp == nil && c.Spec.Source.SnapshotHandle == nil {
			return false
		}
		return w.sidecar(name) // a driver that cannot list snapshots does not report the group
	}
	c := w.groupContents[name].DeepCopy()
	switch {
	case c.DeletionTimestamp != nil && metav1.HasAnnotation(c.ObjectMeta, snapshots.GroupDeletingAnnotation) &&
		controllerutil.ContainsFinalizer(c, snapshots.GroupContentFinalizer):
		if c.Spec.DeletionPolicy == snapshots.Delete {
			delete(w.groupsOfDriver, name)
		}
		controllerutil.RemoveFinalizer(c, snapshots.GroupContentFinalizer)
	case c.DeletionTimestamp == nil && (c.Status == nil || c.Status.ReadyToUse == nil || !*c.Status.ReadyToUse):
		switch take() {
		case "fails":
			if c.Status != nil {
				return false
			}
			c.Status = &snapshots.VolumeGroupSnapshotContentStatus{
				ReadyToUse: new(false), Error: &snapshots.VolumeSnapshotError{Message: new("no")},
			}
		case "is not ready":
			takenGroup(c)
			c.Status.ReadyToUse = new(false)
			w.groupsOfDriver[name] = true
		default:
			takenGroup(c)
			w.groupsOfDriver[name] = true
		}
	default:
		return false
	}
	store(&w.world, w.groupContents, c)
	return true
}

func (w *groupWorld) check(t require.TestingT) {
	for name := range w.groupsOfDriver {
		require.NotNil(t, w.groupContents[name], "the driver's group %s is forgotten", name)
	}
	for name, c := range w.groupContents {
		g := w.groups[c.Spec.VolumeGroupSnapshotRef.Name]
		require.True(t, c.Spec.DeletionPolicy == snapshots.Retain || g != nil && g.UID == c.Spec.VolumeGroupSnapshotRef.UID,
			"%s stays without its group", name)
	}
	for name, c := range w.contents {
		v := w.snapshots[c.Spec.VolumeSnapshotRef.Name]
		require.True(t, c.Spec.DeletionPolicy == snapshots.Retain || v != nil && v.UID == c.Spec.VolumeSnapshotRef.UID,
			"nobody deletes the content %s", name)
	}
	for _, g := range w.groups {
		c := w.groupContents[groupContentOf(g)]
		if !groupReady(g) || c == nil || c.DeletionTimestamp != nil || g.DeletionTimestamp != nil {
			continue
		}
		for _, volume := range c.Spec.Source.VolumeHandles {
			v := w.snapshots[MemberName(g.UID, volume)]
			require.NotNil(t, v, "%s is ready without its snapshot of %s", g.Name, volume)
			of := w.contents[contentOf(v)]
			require.True(t, of != nil && of.Status != nil && of.Status.SnapshotHandle != nil,
				"%s is ready without the content of its snapshot of %s", g.Name, volume)
		}
	}
}

// TestGroupModel: whatever users, the driver and kills do in any order, no driver's group lacks its content, and
// no content of a snapshot lacks its VolumeSnapshot. A ready group has all its snapshots, and none can be removed
// from it. In the end nothing is left to do, and nothing remains of deleted groups.
func TestGroupModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &groupWorld{
			world: world{
				snapshots: map[string]*snapshots.VolumeSnapshot{},
				contents:  map[string]*snapshots.VolumeSnapshotContent{},
				claims:    map[string]*corev1.PersistentVolumeClaim{},
				driver:    map[string]bool{},
			},
			groups:        map[string]*snapshots.VolumeGroupSnapshot{},
			groupContents: map[string]*snapshots.VolumeGroupSnapshotContent{}, groupsOfDriver: map[string]bool{},
			sources: map[string]Source{"a": sourceNamed("a"), "b": sourceNamed("b")}, class: groupClass("class", isDefaultGroup),
		}
		w.class.DeletionPolicy = rapid.SampledFrom([]snapshots.DeletionPolicy{snapshots.Delete, snapshots.Retain}).Draw(t,
			"policy")
		names := []string{"x", "y"}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { w.check(t) },
			"group": func(t *rapid.T) {
				if name := rapid.SampledFrom(names).Draw(t, "name"); w.groups[name] == nil {
					g := group(name, func(g *snapshots.VolumeGroupSnapshot) {
						g.Finalizers, g.Spec.VolumeGroupSnapshotClassName = nil, nil
					})
					w.made(g)
					w.groups[name] = g
				}
			},
			"delete group": func(t *rapid.T) {
				if g := w.groups[rapid.SampledFrom(names).Draw(t, "name")]; g != nil {
					remove(&w.world, w.groups, g.DeepCopy())
				}
			},
			"delete snapshot": func(t *rapid.T) {
				if len(w.snapshots) > 0 {
					remove(&w.world, w.snapshots,
						w.snapshots[rapid.SampledFrom(slices.Sorted(maps.Keys(w.snapshots))).Draw(t, "name")].DeepCopy())
				}
			},
			"claim": func(t *rapid.T) {
				if name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"); w.sources[name].Claim == nil {
					w.sources[name] = sourceNamed(name)
				} else {
					delete(w.sources, name)
				}
			},
			"restore": func(t *rapid.T) {
				w.restoring = rapid.SampledFrom(append(slices.Sorted(maps.Keys(w.snapshots)), "")).Draw(t, "from")
			},
			"driver": func(t *rapid.T) {
				if all := append(slices.Sorted(maps.Keys(w.contents)), slices.Sorted(maps.Keys(w.groupContents))...); len(all) > 0 {
					w.driverStep(t, rapid.SampledFrom(all).Draw(t, "content"), func() string {
						return rapid.SampledFrom([]string{"fails", "is not ready", "succeeds"}).Draw(t, "it")
					})
				}
			},
			"plan": func(t *rapid.T) {
				if all := w.objects(); len(all) > 0 {
					kills := rapid.Bool().Draw(t, "killed")
					w.applyGroup(w.planOf(rapid.SampledFrom(all).Draw(t, "of")), func() bool {
						return kills && rapid.Bool().Draw(t, "before the write")
					})
				}
			},
		})
		w.restoring = ""
		if len(w.sources) == 0 {
			w.sources["a"] = sourceNamed("a")
		}
		w.settle(t)
		for _, name := range names { // the same holds when groups are deleted, with kills in between
			if g := w.groups[name]; g != nil && rapid.Bool().Draw(t, "goes") {
				remove(&w.world, w.groups, g.DeepCopy())
			}
		}
		for range 5 {
			w.round(t, func() bool { return rapid.Bool().Draw(t, "killed before the write") })
		}
		w.settle(t)
	})
}

// round plans each object once and lets the driver act. It reports whether there was anything to do.
func (w *groupWorld) round(t require.TestingT, killed func() bool) (busy bool) {
	for _, o := range w.objects() {
		step := w.planOf(o)
		busy = busy || step.Op != Nothing
		w.applyGroup(step, killed)
		w.check(t)
	}
	for _, name := range append(slices.Sorted(maps.Keys(w.contents)), slices.Sorted(maps.Keys(w.groupContents))...) {
		if !killed() {
			busy = w.driverStep(t, name, func() string { return "succeeds" }) || busy
			w.check(t)
		}
	}
	return busy
}

// settle lets all actors finish. Then each group is ready or completely deleted.
func (w *groupWorld) settle(t *rapid.T) {
	for range 100 {
		if w.round(t, func() bool { return false }) {
			continue
		}
		for _, g := range w.groups {
			require.Nil(t, g.DeletionTimestamp, "%s stays", g.Name)
			require.True(t, groupReady(g), "%s does not become ready", g.Name)
		}
		for _, v := range w.snapshots {
			name, uid := groupOf(v)
			require.True(t, w.groups[name] != nil && w.groups[name].UID == uid, "%s stays without its group", v.Name)
			of := w.contents[contentOf(v)]
			require.NotNil(t, of.Status.VolumeGroupSnapshotHandle, "the driver is asked to delete %s, which goes with its group",
				of.Name)
			require.True(t, v.DeletionTimestamp != nil || *v.Status.VolumeGroupSnapshotName == name)
		}
		if w.class.DeletionPolicy == snapshots.Delete {
			require.Len(t, w.groupsOfDriver, len(w.groups), "the driver has a group that was deleted")
		}
		return
	}
	t.Fatalf("it does not settle: %v", w.objects())
}
