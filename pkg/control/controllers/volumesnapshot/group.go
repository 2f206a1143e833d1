package volumesnapshot

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/pkg/engine"
)

// Indexes: snapshots by their group, contents of groups and of snapshots by the driver's handle for the group,
// volumes by the driver's handle.
const (
	groupIndex        = "snapshot.group"
	groupHandleIndex  = "groupcontent.handle"
	memberHandleIndex = "content.groupHandle"
	volumeIndex       = "volume.csiHandle"
)

// handleKey returns the index value for a driver's handle. Names of drivers have no slash.
func handleKey(driver, handle string) string { return driver + "/" + handle }

var (
	snapshotsByGroup = engine.Index{
		Object: &snapshots.VolumeSnapshot{}, Name: groupIndex, Values: func(o client.Object) []string {
			if v, ok := o.(*snapshots.VolumeSnapshot); ok {
				if name, _ := groupOf(v); name != "" {
					return []string{name}
				}
			}
			return nil
		},
	}
	groupContentsByHandle = engine.Index{
		Object: &snapshots.VolumeGroupSnapshotContent{}, Name: groupHandleIndex, Values: func(o client.Object) []string {
			if c, ok := o.(*snapshots.VolumeGroupSnapshotContent); ok && c.Status != nil &&
				c.Status.VolumeGroupSnapshotHandle != nil {
				return []string{handleKey(c.Spec.Driver, *c.Status.VolumeGroupSnapshotHandle)}
			}
			return nil
		},
	}
	contentsByGroupHandle = engine.Index{
		Object: &snapshots.VolumeSnapshotContent{}, Name: memberHandleIndex, Values: func(o client.Object) []string {
			if c, ok := o.(*snapshots.VolumeSnapshotContent); ok && c.Status != nil &&
				c.Status.VolumeGroupSnapshotHandle != nil {
				return []string{handleKey(c.Spec.Driver, *c.Status.VolumeGroupSnapshotHandle)}
			}
			return nil
		},
	}
	claimsBySource = engine.Index{
		Object: &corev1.PersistentVolumeClaim{}, Name: sourceIndex, Values: func(o client.Object) []string {
			if c, ok := o.(*corev1.PersistentVolumeClaim); ok && c.Status.Phase == corev1.ClaimPending &&
				c.DeletionTimestamp == nil {
				return source(c)
			}
			return nil
		},
	}
	volumesByHandle = engine.Index{
		Object: &corev1.PersistentVolume{}, Name: volumeIndex, Values: func(o client.Object) []string {
			if v, ok := o.(*corev1.PersistentVolume); ok && v.Spec.CSI != nil {
				return []string{handleKey(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle)}
			}
			return nil
		},
	}
)

// NewGroups declares the reconciler of groups. Its requests are groups and, without a namespace, their contents.
func NewGroups() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "volumegroupsnapshot",
		When: &snapshots.VolumeGroupSnapshot{},
		Watches: []engine.Watch{
			{Object: &snapshots.VolumeGroupSnapshot{}},
			{Object: &snapshots.VolumeGroupSnapshotContent{}, Map: ofGroupContent},
			{
				Object: &snapshots.VolumeGroupSnapshotClass{},
				Map: func(ctx context.Context, env engine.Env, _ client.Object) []engine.Request {
					return waitingGroups(ctx, env, "")
				},
			},
			{Object: &snapshots.VolumeSnapshot{}, Map: ofMember},
			{Object: &snapshots.VolumeSnapshotContent{}, Map: ofMemberContent},
			{
				Object: &corev1.PersistentVolumeClaim{},
				Map: func(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
					return waitingGroups(ctx, env, o.GetNamespace())
				},
			},
			{
				Object: &corev1.PersistentVolume{},
				Map: func(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
					if v, ok := o.(*corev1.PersistentVolume); ok && v.Spec.ClaimRef != nil {
						return waitingGroups(ctx, env, v.Spec.ClaimRef.Namespace)
					}
					return nil
				},
			},
		},
		Writes: []engine.Write{
			{Object: &snapshots.VolumeGroupSnapshot{}, Parts: []engine.Part{engine.Spec, engine.Finalizers, engine.Status}},
			{
				Object: &snapshots.VolumeGroupSnapshotContent{},
				Parts:  []engine.Part{engine.Create, engine.Delete, engine.Spec, engine.Metadata, engine.Finalizers},
			},
			{Object: &snapshots.VolumeSnapshot{}, Parts: []engine.Part{engine.Create, engine.Delete}},
			{Object: &snapshots.VolumeSnapshotContent{}, Parts: []engine.Part{engine.Create, engine.Status}},
		},
		Indexes: []engine.Index{snapshotsByGroup, claimsBySource, volumesByHandle},
		New: func(env engine.Env) engine.Func {
			r := &reconciler{env}
			return r.follow(r.planGroup)
		},
	}
}

// ofGroupContent maps a group's content to itself and to its group.
func ofGroupContent(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
	out := []engine.Request{engine.RequestFor("", o.GetName())}
	if c, ok := o.(*snapshots.VolumeGroupSnapshotContent); ok {
		out = append(out, engine.RequestFor(c.Spec.VolumeGroupSnapshotRef.Namespace, c.Spec.VolumeGroupSnapshotRef.Name))
	}
	return out
}

func ofMember(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
	if v, ok := o.(*snapshots.VolumeSnapshot); ok {
		if name, _ := groupOf(v); name != "" {
			return []engine.Request{engine.RequestFor(v.Namespace, name)}
		}
	}
	return nil
}

func ofMemberContent(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	c, ok := o.(*snapshots.VolumeSnapshotContent)
	if !ok {
		return nil
	}
	var v snapshots.VolumeSnapshot
	if env.Cache.Get(ctx,
		client.ObjectKey{Namespace: c.Spec.VolumeSnapshotRef.Namespace, Name: c.Spec.VolumeSnapshotRef.Name}, &v) != nil {
		return nil
	}
	return ofMember(ctx, env, &v)
}

// waitingGroups returns the groups in a namespace, "" for all, that are not ready or are being deleted.
func waitingGroups(ctx context.Context, env engine.Env, namespace string) []engine.Request {
	var list snapshots.VolumeGroupSnapshotList
	if err := env.Cache.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		env.Log.Warn("could not list the groups that wait", "namespace", namespace, "error", err)
		return nil
	}
	return engine.Requests(list.Items, func(g *snapshots.VolumeGroupSnapshot) bool {
		return g.DeletionTimestamp != nil || !groupReady(g)
	})
}

func (r *reconciler) planGroup(ctx context.Context, req engine.Request) (Step, error) {
	if req.Namespace == "" {
		var c snapshots.VolumeGroupSnapshotContent
		if err := r.Cache.Get(ctx, req.NamespacedName, &c); err != nil {
			return Step{}, err
		}
		return PlanGroupContent(&c), nil
	}
	s, err := r.groupState(ctx, req)
	if err != nil {
		return Step{}, err
	}
	return PlanGroup(s, r.Now()), nil
}

func (r *reconciler) groupState(ctx context.Context, req engine.Request) (GroupState, error) {
	var g snapshots.VolumeGroupSnapshot
	if err := r.Cache.Get(ctx, req.NamespacedName, &g); err != nil {
		return GroupState{}, err
	}
	s := GroupState{
		Group:     &g,
		Snapshots: map[string]*snapshots.VolumeSnapshot{},
		Contents:  map[string]*snapshots.VolumeSnapshotContent{},
		Volumes:   map[string]*corev1.PersistentVolume{},
	}
	var err error
	s.Content, err = engine.Find[snapshots.VolumeGroupSnapshotContent](ctx, r.Cache, "", groupContentOf(&g))
	if err != nil {
		return s, err
	}
	if g.DeletionTimestamp != nil {
		return s, r.leaving(ctx, &s)
	}
	var classes snapshots.VolumeGroupSnapshotClassList
	if err := r.Cache.List(ctx, &classes); err != nil {
		return s, err
	}
	s.Classes = engine.Pointers(classes.Items)
	switch {
	case groupReady(&g):
	case s.Content == nil && g.Spec.Source.Selector != nil:
		return s, r.sources(ctx, &s)
	case s.Content != nil && s.Content.Status != nil:
		for _, info := range s.Content.Status.VolumeSnapshotInfoList {
			if err := r.member(ctx, &s, info.VolumeHandle); err != nil {
				return s, err
			}
		}
	}
	return s, nil
}

// leaving reads the snapshots of a terminating group, and the claims that are being restored from them.
func (r *reconciler) leaving(ctx context.Context, s *GroupState) error {
	var list snapshots.VolumeSnapshotList
	if err := r.ByIndex(ctx, &list, s.Group.Namespace, groupIndex, s.Group.Name); err != nil {
		return err
	}
	for i := range list.Items {
		v := &list.Items[i]
		if _, uid := groupOf(v); uid != "" && uid != s.Group.UID {
			continue // of an earlier group with this name
		}
		s.Snapshots[v.Name] = v
		restoring, err := r.restoring(ctx, v)
		if err != nil {
			return err
		}
		s.Restoring = append(s.Restoring, restoring...)
	}
	slices.Sort(s.Restoring)
	return nil
}

func (r *reconciler) sources(ctx context.Context, s *GroupState) error {
	selector, err := metav1.LabelSelectorAsSelector(s.Group.Spec.Source.Selector)
	if err != nil {
		return err
	}
	var list corev1.PersistentVolumeClaimList
	if err := r.Cache.List(ctx, &list, client.InNamespace(s.Group.Namespace), client.MatchingLabelsSelector{
		Selector: selector,
	}); err != nil {
		return err
	}
	if s.Selected = len(list.Items); s.Selected > snapshots.MaxGroup {
		return nil
	}
	for _, c := range engine.Pointers(list.Items) {
		v, err := r.volumeOf(ctx, c)
		if err != nil {
			return err
		}
		s.Sources = append(s.Sources, Source{Claim: c, Volume: v})
	}
	slices.SortFunc(s.Sources, func(a, b Source) int { return strings.Compare(a.Claim.Name, b.Claim.Name) })
	return nil
}

// member reads the existing objects for a group's snapshot of a volume.
func (r *reconciler) member(ctx context.Context, s *GroupState, handle string) error {
	name := MemberName(s.Group.UID, handle)
	if v, err := engine.Find[snapshots.VolumeSnapshot](ctx, r.Cache, s.Group.Namespace, name); err != nil {
		return err
	} else if v != nil {
		s.Snapshots[name] = v
	}
	if c, err := engine.Find[snapshots.VolumeSnapshotContent](ctx, r.Cache, "", memberContent(name)); err != nil {
		return err
	} else if c != nil {
		s.Contents[c.Name] = c
	}
	var volumes corev1.PersistentVolumeList
	if err := r.ByIndex(ctx, &volumes, "", volumeIndex, handleKey(s.Content.Spec.Driver, handle)); err != nil {
		return err
	}
	if len(volumes.Items) == 1 {
		s.Volumes[handle] = &volumes.Items[0]
	}
	return nil
}

// refusalAge is the minimum time before a refusal in a group's status is replaced by another one. Each write of
// the status causes an event and another attempt, and the message may differ each time.
const refusalAge = time.Minute

const refusal = "failed to create the snapshots of the group with error "

// writeMembers applies the steps for several snapshots of a group. If a quota or a policy rejects a write, the
// group's status reports it, and it is retried.
func (r *reconciler) writeMembers(ctx context.Context, s Step) error {
	err := engine.SlowStart(len(s.Members), func(i int) error { return r.apply(ctx, s.Members[i]) })
	if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		return err
	}
	if st := s.Group.Status; st != nil && st.Error != nil && st.Error.Message != nil &&
		strings.HasPrefix(*st.Error.Message, refusal) &&
		st.Error.Time != nil && r.Now().Sub(st.Error.Time.Time) < refusalAge {
		return err
	}
	said := GroupState{Group: s.Group}.failed(r.Now(), "SnapshotsOfGroupFailed", refusal+err.Error())
	r.Notify(said.Event)
	return errors.Join(err, r.apply(ctx, said))
}

// group returns a snapshot's group, or nil. For a pre-provisioned snapshot, the driver's group handle in its
// content identifies the group.
func (r *reconciler) group(ctx context.Context, v *snapshots.VolumeSnapshot,
	content *snapshots.VolumeSnapshotContent) (*snapshots.VolumeGroupSnapshot, error) {
	name, uid := groupOf(v)
	if name == "" && content != nil && content.Status != nil && content.Status.VolumeGroupSnapshotHandle != nil &&
		names(content, v) {
		var of snapshots.VolumeGroupSnapshotContentList
		if err := r.ByIndex(ctx, &of, "", groupHandleIndex,
			handleKey(content.Spec.Driver, *content.Status.VolumeGroupSnapshotHandle)); err != nil {
			return nil, err
		}
		for i := range of.Items {
			if ref := of.Items[i].Spec.VolumeGroupSnapshotRef; ref.Namespace == v.Namespace && ref.UID != "" {
				name, uid = ref.Name, ref.UID
			}
		}
	}
	if name == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	g, err := engine.Find[snapshots.VolumeGroupSnapshot](ctx, r.Cache, v.Namespace, name)
	if g != nil && uid != "" && uid != g.UID {
		return nil, nil //nolint:nilnil // a later one of this name
	}
	return g, err
}

func ofGroup(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	var list snapshots.VolumeSnapshotList
	if err := env.ByIndex(ctx, &list, o.GetNamespace(), groupIndex, o.GetName()); err != nil {
		env.Log.Warn("could not list the snapshots of a group", "group", o.GetNamespace()+"/"+o.GetName(), "error", err)
		return nil
	}
	return engine.Requests(list.Items, nil)
}

// ofDriversGroup maps a group's content to the snapshots with the same group handle.
func ofDriversGroup(ctx context.Context, env engine.Env, o client.Object) (out []engine.Request) {
	for _, key := range groupContentsByHandle.Values(o) {
		var list snapshots.VolumeSnapshotContentList
		if err := env.ByIndex(ctx, &list, "", memberHandleIndex, key); err != nil {
			env.Log.Warn("could not list the contents of a group's snapshots", "content", o.GetName(), "error", err)
			return nil
		}
		for i := range list.Items {
			ref := list.Items[i].Spec.VolumeSnapshotRef
			out = append(out, engine.RequestFor(ref.Namespace, ref.Name))
		}
	}
	return out
}
