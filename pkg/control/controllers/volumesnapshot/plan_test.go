package volumesnapshot

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	helpers "k8s.io/component-helpers/storage/volume"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/apis/storage"
)

var now = time.Unix(1000, 0)

func snapshot(name string, change ...func(*snapshots.VolumeSnapshot)) *snapshots.VolumeSnapshot {
	v := &snapshots.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:  "ns",
			Name:       name,
			UID:        types.UID("uid-" + name),
			Finalizers: []string{snapshots.SourceFinalizer},
		},
		Spec: snapshots.VolumeSnapshotSpec{
			Source: snapshots.VolumeSnapshotSource{PersistentVolumeClaimName: new("c")}, VolumeSnapshotClassName: new("class"),
		},
	}
	for _, f := range change {
		f(v)
	}
	return v
}

func existing(v *snapshots.VolumeSnapshot) {
	v.Spec.Source = snapshots.VolumeSnapshotSource{VolumeSnapshotContentName: new("content")}
}

func bound(v *snapshots.VolumeSnapshot) {
	v.Finalizers = append(v.Finalizers, snapshots.BoundFinalizer)
	v.Status = &snapshots.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: new(contentOf(v)), ReadyToUse: new(false)}
}

func isReady(v *snapshots.VolumeSnapshot) { bound(v); v.Status.ReadyToUse = new(true) }

func deleted(v *snapshots.VolumeSnapshot) { v.DeletionTimestamp = &metav1.Time{} }

func content(of *snapshots.VolumeSnapshot,
	change ...func(*snapshots.VolumeSnapshotContent)) *snapshots.VolumeSnapshotContent {
	c := &snapshots.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: contentOf(of), Finalizers: []string{snapshots.ContentFinalizer}},
		Spec: snapshots.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: of.Namespace, Name: of.Name, UID: of.UID},
			DeletionPolicy:    snapshots.Delete,
			Driver:            "d.example.com", VolumeSnapshotClassName: new("class"),
			Source: snapshots.VolumeSnapshotContentSource{VolumeHandle: new("disk")},
		},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func taken(c *snapshots.VolumeSnapshotContent) {
	c.Status = &snapshots.VolumeSnapshotContentStatus{
		SnapshotHandle: new("snap"),
		ReadyToUse:     new(true),
		CreationTime:   new(int64(5e9)),
		RestoreSize:    new(int64(1 << 30)),
	}
}

func handle(c *snapshots.VolumeSnapshotContent) {
	c.Spec.Source = snapshots.VolumeSnapshotContentSource{SnapshotHandle: new("snap")}
}

func unbound(c *snapshots.VolumeSnapshotContent) { c.Spec.VolumeSnapshotRef.UID = "" }

func retained(c *snapshots.VolumeSnapshotContent) { c.Spec.DeletionPolicy = snapshots.Retain }

func told(c *snapshots.VolumeSnapshotContent) { annotate(c, snapshots.DeletingAnnotation, "yes") }

func going(c *snapshots.VolumeSnapshotContent) { told(c); c.DeletionTimestamp = &metav1.Time{} }

func class(name string, change ...func(*snapshots.VolumeSnapshotClass)) *snapshots.VolumeSnapshotClass {
	c := &snapshots.VolumeSnapshotClass{
		ObjectMeta:     metav1.ObjectMeta{Name: name},
		Driver:         "d.example.com",
		DeletionPolicy: snapshots.Delete,
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func isDefault(c *snapshots.VolumeSnapshotClass) {
	c.Annotations = map[string]string{snapshots.DefaultAnnotation: "true"}
}

func claim(name string, finalizers ...string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Finalizers: finalizers},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "v"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
}

func volume() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: "uid-c"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: "disk"},
		}}}
}

func TestPlanSnapshot(t *testing.T) {
	protected := claim("c", snapshots.ClaimFinalizer)
	classes := []*snapshots.VolumeSnapshotClass{class("class"), class("other", isDefault)}
	local := volume()
	local.Annotations = map[string]string{helpers.AnnDynamicallyProvisioned: storage.Provisioner}
	local.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/x"}}
	hostPath := volume()
	hostPath.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: "/x"},
	}
	noClass := func(v *snapshots.VolumeSnapshot) { v.Spec.VolumeSnapshotClassName = nil }
	for name, tt := range map[string]struct {
		s      State
		op     Op
		reason string
		check  func(*testing.T, Step)
	}{
		"it is protected first": {
			s: State{Snapshot: snapshot("s", func(v *snapshots.VolumeSnapshot) { v.Finalizers = nil })}, op: UpdateSnapshot,
		},
		"the default class of the volume's driver": {
			s:     State{Snapshot: snapshot("s", noClass), Claim: claim("c"), Volume: volume(), Classes: classes},
			op:    UpdateSnapshot,
			check: func(t *testing.T, s Step) { require.Equal(t, "other", *s.Snapshot.Spec.VolumeSnapshotClassName) },
		},
		"no default class": {
			s:  State{Snapshot: snapshot("s", noClass), Claim: claim("c"), Volume: volume(), Classes: classes[:1]},
			op: UpdateSnapshotStatus, reason: "SetDefaultSnapshotClassFailed",
		},
		"two default classes": {
			s: State{
				Snapshot: snapshot("s", noClass),
				Claim:    claim("c"),
				Volume:   volume(),
				Classes:  append(classes, class("third", isDefault)),
			}, op: UpdateSnapshotStatus, reason: "SetDefaultSnapshotClassFailed",
		},
		"another driver's default": {
			s:  State{Snapshot: snapshot("s", noClass), Claim: claim("c"), Volume: local, Classes: classes},
			op: UpdateSnapshotStatus, reason: "SetDefaultSnapshotClassFailed",
		},
		"no such class": {
			s: State{Snapshot: snapshot("s"), Claim: claim("c"), Volume: volume()}, op: UpdateSnapshotStatus,
			reason: "GetSnapshotClassFailed",
		},
		"no such claim": {
			s: State{Snapshot: snapshot("s"), Classes: classes}, op: UpdateSnapshotStatus,
			reason: "SnapshotContentCreationFailed",
		},
		"said once": {s: State{Snapshot: snapshot("s", func(v *snapshots.VolumeSnapshot) {
			v.Status = &snapshots.VolumeSnapshotStatus{
				ReadyToUse: new(false),
				Error: &snapshots.VolumeSnapshotError{
					Message: new(`Failed to create snapshot content with error persistentvolumeclaim "c" not found`),
				},
			}
		}), Classes: classes}, reason: "SnapshotContentCreationFailed"},
		"the claim has no volume yet": {
			s: State{Snapshot: snapshot("s"), Classes: classes, Claim: claim("c")}, op: UpdateSnapshotStatus,
			reason: "SnapshotContentCreationFailed",
		},
		"neither CSI nor ours": {
			s: State{Snapshot: snapshot("s"), Classes: classes, Claim: claim("c"), Volume: hostPath}, op: UpdateSnapshotStatus,
			reason: "SnapshotContentCreationFailed",
		},
		"the class is another driver's": {
			s: State{Snapshot: snapshot("s"), Classes: classes, Claim: claim("c"), Volume: local}, op: UpdateSnapshotStatus,
			reason: "SnapshotContentCreationFailed",
		},
		"the claim is being deleted": {
			s:  State{Snapshot: snapshot("s"), Classes: classes, Claim: leaving(claim("c")), Volume: volume()},
			op: UpdateSnapshotStatus, reason: "SnapshotContentCreationFailed",
		},
		"the claim is protected": {
			s: State{Snapshot: snapshot("s"), Classes: classes, Claim: claim("c"), Volume: volume()}, op: UpdateClaim,
		},
		"then its content is made": {
			s: State{Snapshot: snapshot("s"), Classes: classes, Claim: protected, Volume: volume()}, op: CreateContent,
			reason: "CreatingSnapshot",
			check:  func(t *testing.T, s Step) { require.Equal(t, "disk", *s.Content.Spec.Source.VolumeHandle) },
		},
		"of a volume of our own": {
			s: State{
				Snapshot: snapshot("s"),
				Classes: []*snapshots.VolumeSnapshotClass{
					class("class", func(c *snapshots.VolumeSnapshotClass) { c.Driver = storage.Provisioner }),
				},
				Claim:  protected,
				Volume: local,
			}, op: CreateContent, reason: "CreatingSnapshot",
			check: func(t *testing.T, s Step) { require.Equal(t, "v", *s.Content.Spec.Source.VolumeHandle) },
		},
		"with no name of a Secret": {
			s: State{
				Snapshot: snapshot("s"),
				Classes:  []*snapshots.VolumeSnapshotClass{class("class", secret("Key ${volumesnapshot.name}", "ns"))},
				Claim:    protected,
				Volume:   volume(),
			}, op: UpdateSnapshotStatus, reason: "SnapshotContentCreationFailed", check: func(t *testing.T, s Step) {
				require.Contains(t, *s.Snapshot.Status.Error.Message, `"Key s" is not a valid Secret name`)
			},
		},
		"with the name of its Secret": {
			s: State{
				Snapshot: snapshot("s"),
				Classes: []*snapshots.VolumeSnapshotClass{
					class("class", secret("key-${volumesnapshot.name}", "${volumesnapshot.namespace}")),
				},
				Claim:  protected,
				Volume: volume(),
			}, op: CreateContent, reason: "CreatingSnapshot", check: func(t *testing.T, s Step) {
				require.Equal(t, "key-s", s.Content.Annotations[snapshots.SecretNameAnnotation])
			},
		},
		"which its user cannot move": {
			s: State{
				Snapshot: snapshot("s"),
				Classes:  []*snapshots.VolumeSnapshotClass{class("class", secret("key", "${volumesnapshot.name}"))},
				Claim:    protected,
				Volume:   volume(),
			}, op: UpdateSnapshotStatus, reason: "SnapshotContentCreationFailed",
		},
		"bound": {
			s: State{Snapshot: snapshot("s"), Content: content(snapshot("s"))}, op: UpdateSnapshotStatus,
			check: func(t *testing.T, s Step) {
				require.Equal(t, "snapcontent-uid-s", *s.Snapshot.Status.BoundVolumeSnapshotContentName)
			},
		},
		"protected once it is bound": {
			s: State{
				Snapshot: snapshot("s", bound, func(v *snapshots.VolumeSnapshot) { v.Finalizers = v.Finalizers[:1] }),
				Content:  content(snapshot("s")),
			}, op: UpdateSnapshot,
		},
		"being taken": {s: State{Snapshot: snapshot("s", bound), Content: content(snapshot("s"))}},
		"ready": {
			s: State{Snapshot: snapshot("s", bound), Content: content(snapshot("s"), taken)}, op: UpdateSnapshotStatus,
			reason: "SnapshotReady",
			check:  func(t *testing.T, s Step) { require.Equal(t, "1Gi", s.Snapshot.Status.RestoreSize.String()) },
		},
		"the driver failed": {
			s: State{Snapshot: snapshot("s", bound), Content: content(snapshot("s"), func(c *snapshots.VolumeSnapshotContent) {
				c.Status = &snapshots.VolumeSnapshotContentStatus{Error: &snapshots.VolumeSnapshotError{Message: new("no")}}
			})}, op: UpdateSnapshotStatus, check: func(t *testing.T, s Step) {
				require.Equal(t, "no", *s.Snapshot.Status.Error.Message)
			},
		},
		"ready, its content is gone": {
			s: State{Snapshot: snapshot("s", isReady)}, op: UpdateSnapshotStatus, reason: "SnapshotContentMissing",
		},
		"ready, its content is unbound": {
			s:  State{Snapshot: snapshot("s", isReady), Content: content(snapshot("s"), taken, unbound)},
			op: UpdateSnapshotStatus, reason: "SnapshotMisbound",
		},
		"ready, its class is named later": {
			s: State{Snapshot: snapshot("s", existing, isReady, func(v *snapshots.VolumeSnapshot) {
				taken := content(snapshot("s", existing), handle, taken)
				v.Status = PlanSnapshot(State{Snapshot: v, Content: taken}, now).Snapshot.Status
				v.Spec.VolumeSnapshotClassName = new("class")
			}), Content: content(snapshot("s", existing), handle, taken, func(c *snapshots.VolumeSnapshotContent) {
				c.Spec.VolumeSnapshotClassName = nil
			})},
		},
		"existing, not there yet": {
			s: State{Snapshot: snapshot("s", existing)}, op: UpdateSnapshotStatus, reason: "SnapshotContentMissing",
		},
		"existing, bound": {
			s:     State{Snapshot: snapshot("s", existing), Content: content(snapshot("s", existing), handle, unbound)},
			op:    UpdateContent,
			check: func(t *testing.T, s Step) { require.EqualValues(t, "uid-s", s.Content.Spec.VolumeSnapshotRef.UID) },
		},
		"existing, another's": {
			s:  State{Snapshot: snapshot("s", existing), Content: content(snapshot("other", existing), handle)},
			op: UpdateSnapshotStatus, reason: "SnapshotContentMisbound",
		},
		"existing, of a former snapshot": {
			s: State{
				Snapshot: snapshot("s", existing),
				Content: content(snapshot("s", existing), handle, func(c *snapshots.VolumeSnapshotContent) {
					c.Spec.VolumeSnapshotRef.UID = "former"
				}),
			}, op: UpdateSnapshotStatus, reason: "SnapshotContentMisbound",
		},
		"existing, but to be taken": {
			s: State{Snapshot: snapshot("s", existing), Content: content(snapshot("s", existing))}, op: UpdateSnapshotStatus,
			reason: "SnapshotContentMismatch",
		},

		"deleted": {
			s: State{Snapshot: snapshot("s", isReady, deleted), Content: content(snapshot("s"), taken)}, op: UpdateContent,
			check: func(t *testing.T, s Step) { require.Contains(t, s.Content.Annotations, snapshots.DeletingAnnotation) },
		},
		"with its content": {
			s: State{Snapshot: snapshot("s", isReady, deleted), Content: content(snapshot("s"), taken, told)}, op: DeleteContent,
		},
		"which the driver deletes": {
			s:  State{Snapshot: snapshot("s", isReady, deleted), Content: content(snapshot("s"), taken, going)},
			op: UpdateSnapshot, check: func(t *testing.T, s Step) {
				require.Equal(t, []string{snapshots.BoundFinalizer}, s.Snapshot.Finalizers)
			},
		},
		"and it waits for that": {
			s: State{
				Snapshot: snapshot("s", isReady, deleted, func(v *snapshots.VolumeSnapshot) { v.Finalizers = v.Finalizers[1:] }),
				Content:  content(snapshot("s"), taken, going),
			},
		},
		"deleted before it was bound": {
			s: State{Snapshot: snapshot("s", deleted), Content: content(snapshot("s"), taken, going)},
		},
		"gone": {
			s: State{Snapshot: snapshot("s", isReady, deleted)}, op: UpdateSnapshot,
			check: func(t *testing.T, s Step) { require.Empty(t, s.Snapshot.Finalizers) },
		},
		"deleted, its content is kept": {
			s:  State{Snapshot: snapshot("s", isReady, deleted), Content: content(snapshot("s"), taken, told, retained)},
			op: UpdateSnapshot, check: func(t *testing.T, s Step) { require.Empty(t, s.Snapshot.Finalizers) },
		},
		"deleted while it is restored": {
			s: State{
				Snapshot:  snapshot("s", isReady, deleted),
				Content:   content(snapshot("s"), taken),
				Restoring: []string{"d"},
			}, reason: "SnapshotDeletePending",
		},
		"another's content stays": {
			s:  State{Snapshot: snapshot("s", existing, deleted), Content: content(snapshot("other", existing), handle)},
			op: UpdateSnapshot,
		},
		"so does one that was not bound": {
			s:  State{Snapshot: snapshot("s", existing, deleted), Content: content(snapshot("s", existing), handle, unbound)},
			op: UpdateSnapshot,
		},
	} {
		t.Run(name, func(t *testing.T) {
			step := PlanSnapshot(tt.s, now)
			require.Equal(t, tt.op, step.Op, "%+v", step.Event)
			reason := ""
			if step.Event != nil {
				reason = step.Event.Reason
			}
			require.Equal(t, tt.reason, reason)
			if tt.check != nil {
				tt.check(t, step)
			}
		})
	}
}

func leaving(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	c.DeletionTimestamp = &metav1.Time{}
	return c
}

func secret(name, namespace string) func(*snapshots.VolumeSnapshotClass) {
	return func(c *snapshots.VolumeSnapshotClass) {
		c.Parameters = map[string]string{snapshots.SecretNameParameter: name, snapshots.SecretNamespaceParameter: namespace}
	}
}

func TestPlanClaimAndContent(t *testing.T) {
	protected := claim("c", snapshots.ClaimFinalizer)
	require.Equal(t, UpdateClaim, PlanClaim(protected, nil).Op)
	require.Equal(t, UpdateClaim,
		PlanClaim(protected, []*snapshots.VolumeSnapshot{snapshot("a", isReady), snapshot("b", bound, deleted)}).Op)
	require.Equal(t, Nothing,
		PlanClaim(protected, []*snapshots.VolumeSnapshot{snapshot("a", isReady), snapshot("b", bound)}).Op)
	require.Equal(t, Nothing, PlanClaim(claim("c"), nil).Op)
	plain := func(c *snapshots.VolumeSnapshotContent) { c.Finalizers = nil }
	require.Equal(t, UpdateContent, PlanContent(content(snapshot("s"), plain)).Op)
	require.Equal(t, Nothing, PlanContent(content(snapshot("s"))).Op)
	require.Equal(t, Nothing, PlanContent(content(snapshot("s"), plain, unbound)).Op)
	require.Equal(t, Nothing, PlanContent(content(snapshot("s"), plain, going)).Op)
}
