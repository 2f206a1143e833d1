package volumebinding

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helpers "k8s.io/component-helpers/storage/volume"

	"github.com/coracle-dev/coracle/apis/storage"
)

func TestPlanClaim(t *testing.T) {
	const wait, immediate = storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	plain := claim("c")
	bound := claim("c", annotated(helpers.AnnBindCompleted, "yes"), func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeName, c.Status = "v", corev1.PersistentVolumeClaimStatus{
			Phase:       corev1.ClaimBound,
			Capacity:    size("1Gi"),
			AccessModes: c.Spec.AccessModes,
		}
		c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
			{Type: corev1.PersistentVolumeClaimUnused, Status: corev1.ConditionTrue},
		}
	})
	own := volume("v", "1Gi", refTo(plain), func(v *corev1.PersistentVolume) {
		v.Annotations = map[string]string{helpers.AnnDynamicallyProvisioned: storage.Provisioner}
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/v"}}
		v.Status.Phase = corev1.VolumeBound
	})
	grown := own.DeepCopy()
	grown.Spec.Capacity = size("2Gi")
	pods := func(nodes ...string) (list []*corev1.Pod) {
		for i, n := range nodes {
			list = append(list, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: string(rune('a' + i))}, Spec: corev1.PodSpec{NodeName: n},
			})
		}
		return list
	}
	using := func(change func(*corev1.Pod)) []*corev1.Pod {
		p := &corev1.Pod{
			Spec: corev1.PodSpec{
				Volumes: []corev1.Volume{
					{
						VolumeSource: corev1.VolumeSource{
							PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
						},
					},
				},
			},
		}
		if change != nil {
			change(p)
		}
		return []*corev1.Pod{p}
	}
	for name, tt := range map[string]struct {
		s      ClaimState
		op     Op
		reason string
		check  func(*testing.T, Step)
	}{
		"the smallest that is large enough": {
			s: ClaimState{
				Claim: plain, Class: class("x/y", immediate),
				Candidates: []*corev1.PersistentVolume{volume("small", "1Mi"), volume("large", "9Gi"), volume("fit", "2Gi"),
					volume("many", "1Gi", func(v *corev1.PersistentVolume) {
						v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
					})},
			}, op: UpdateVolume,
			check: func(t *testing.T, s Step) {
				require.Equal(t, "fit", s.Volume.Name)
				require.Equal(t, plain.UID, s.Volume.Spec.ClaimRef.UID)
			},
		},
		"one that names the claim": {
			s: ClaimState{
				Claim:      plain,
				Class:      class("x/y", wait),
				Candidates: []*corev1.PersistentVolume{volume("free", "1Gi"), volume("mine", "5Gi", refTo(plain))},
			}, op: UpdateStatus,
		},
		"one that names another is not taken": {
			s: ClaimState{
				Claim:      plain,
				Class:      class("x/y", immediate),
				Candidates: []*corev1.PersistentVolume{volume("v", "1Gi", refTo(claim("d")))},
			}, op: UpdateClaim,
		},
		"nobody to wait for": {
			s: ClaimState{Claim: plain, Class: class(storage.Provisioner, wait)}, reason: "WaitForFirstConsumer",
		},
		"a pod that waits": {
			s: ClaimState{Claim: plain, Class: class(storage.Provisioner, wait), Pods: pods("")}, reason: "WaitForPodScheduled",
		},
		"no such class": {s: ClaimState{Claim: plain}, reason: "ProvisioningFailed"},
		"no class at all": {
			s: ClaimState{
				Claim:   claim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("") }),
				Default: class("x/y", wait),
			}, reason: "FailedBinding",
		},
		"the default class comes later": {
			s: ClaimState{
				Claim:   claim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }),
				Default: class("x/y", wait),
			}, op: UpdateClaim, check: func(t *testing.T, s Step) { require.Equal(t, "local", *s.Claim.Spec.StorageClassName) },
		},
		"somebody else's provisioner is asked": {
			s: ClaimState{Claim: plain, Class: class("x/y", immediate)}, op: UpdateClaim, check: func(t *testing.T, s Step) {
				require.Equal(t, "x/y", s.Claim.Annotations[helpers.AnnStorageProvisioner])
			},
		},
		"and waited for": {
			s: ClaimState{Claim: claim("c", asked("x/y")), Class: class("x/y", immediate)}, reason: "ExternalProvisioning",
		},
		"on the selected node": {
			s: ClaimState{
				Claim: claim("c", asked(storage.Provisioner, helpers.AnnSelectedNode, "b")),
				Class: class(storage.Provisioner, wait),
				Nodes: []*corev1.Node{node("a"), node("b")},
			}, op: CreateVolume, reason: "ProvisioningSucceeded", check: func(t *testing.T, s Step) {
				require.Equal(t, "/var/lib/b/pvc-uid-c", s.Volume.Spec.Local.Path)
				require.Equal(t, "b", storage.HostOf(s.Volume))
			},
		},
		"the selected node is gone": {
			s: ClaimState{
				Claim: claim("c", asked(storage.Provisioner, helpers.AnnSelectedNode, "b")),
				Class: class(storage.Provisioner, wait),
				Nodes: []*corev1.Node{node("a")},
			}, op: UpdateClaim, reason: "ProvisioningFailed",
			check: func(t *testing.T, s Step) { require.NotContains(t, s.Claim.Annotations, helpers.AnnSelectedNode) },
		},
		"on any node": {
			s: ClaimState{
				Claim: claim("c", asked(storage.Provisioner)),
				Class: class(storage.Provisioner, immediate),
				Nodes: []*corev1.Node{node("b"), node("a")},
			}, op: CreateVolume, reason: "ProvisioningSucceeded",
			check: func(t *testing.T, s Step) { require.Equal(t, "a", storage.HostOf(s.Volume)) },
		},
		"no node": {
			s:      ClaimState{Claim: claim("c", asked(storage.Provisioner)), Class: class(storage.Provisioner, immediate)},
			reason: "ProvisioningFailed",
		},
		"shared by several nodes": {
			s: ClaimState{
				Claim: claim("c", asked(storage.Provisioner), func(c *corev1.PersistentVolumeClaim) {
					c.Spec.AccessModes[0] = corev1.ReadWriteMany
				}),
				Class: class(storage.Provisioner, immediate),
				Nodes: []*corev1.Node{node("a")},
			}, reason: "ProvisioningFailed",
		},
		"a volume that is named, too small": {
			s: ClaimState{
				Claim: claim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }), Volume: volume("v", "1Mi"),
			}, reason: "VolumeMismatch",
		},
		"a volume that is named, another's": {
			s: ClaimState{
				Claim:  claim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }),
				Volume: volume("v", "1Gi", refTo(claim("d"))),
			}, reason: "FailedBinding",
		},
		"a volume that is named, not there yet": {
			s: ClaimState{Claim: claim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" })},
		},
		"a copy does not wait for a pod": {
			s:  ClaimState{Claim: claim("c", copyOf), Class: class(storage.Provisioner, wait), Nodes: []*corev1.Node{node("a")}},
			op: UpdateClaim, check: func(t *testing.T, s Step) {
				require.Equal(t, storage.Provisioner, s.Claim.Annotations[helpers.AnnStorageProvisioner])
			},
		},
		"another reconciler makes it": {
			s: ClaimState{
				Claim: claim("c", copyOf, asked(storage.Provisioner)),
				Class: class(storage.Provisioner, wait),
				Nodes: []*corev1.Node{node("a")},
			},
		},
		"no other volume may be the copy": {
			s: ClaimState{
				Claim:      claim("c", copyOf, asked(storage.Provisioner)),
				Class:      class(storage.Provisioner, wait),
				Candidates: []*corev1.PersistentVolume{volume("free", "1Gi")},
			},
		},
		"a copy that is not whole": {
			s: ClaimState{
				Claim:      claim("c", copyOf, asked(storage.Provisioner)),
				Class:      class(storage.Provisioner, wait),
				Candidates: []*corev1.PersistentVolume{volume("mine", "1Gi", refTo(plain), filled())},
			},
		},
		"a copy that is whole": {
			s: ClaimState{
				Claim: claim("c", copyOf, asked(storage.Provisioner)),
				Class: class(storage.Provisioner, wait),
				Candidates: []*corev1.PersistentVolume{
					volume("mine", "1Gi", refTo(plain), filled(storage.CopiedAnnotation, "true")),
				},
			}, op: UpdateStatus,
		},
		"done": {s: ClaimState{Claim: bound, Volume: own}},
		"used again": {
			s: ClaimState{Claim: bound, Volume: own, Pods: using(nil)}, op: UpdateClaimStatus,
			check: func(t *testing.T, s Step) {
				require.Equal(t,
					[]corev1.PersistentVolumeClaimCondition{
						{Type: corev1.PersistentVolumeClaimUnused, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Unix(1, 0),
							Reason: "PodUsingPVC", Message: "A pod is currently referencing this PVC"},
					}, s.Claim.Status.Conditions)
			},
		},
		"used by one that has ended": {
			s: ClaimState{Claim: bound, Volume: own, Pods: using(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })},
		},
		"used by one that is deleted": {
			s: ClaimState{Claim: bound, Volume: own, Pods: using(func(p *corev1.Pod) { deleted(p) })},
		},
		"used by one that stops": {s: ClaimState{Claim: bound, Volume: own, Pods: using(func(p *corev1.Pod) {
			deleted(p)
			p.Status.ContainerStatuses = []corev1.ContainerStatus{
				{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			}
		})}, op: UpdateClaimStatus},
		"nobody has used it yet": {
			s:  ClaimState{Claim: with(bound, func(c *corev1.PersistentVolumeClaim) { c.Status.Conditions = nil }), Volume: own},
			op: UpdateClaimStatus, check: func(t *testing.T, s Step) {
				require.Equal(t, []string{"true"}, unused(s.Claim))
			},
		},
		"lost": {s: ClaimState{Claim: bound}, op: UpdateClaimStatus, reason: "ClaimLost"},
		"taken by another": {
			s: ClaimState{Claim: bound, Volume: volume("v", "1Gi", refTo(claim("d")))}, op: UpdateClaimStatus,
			reason: "ClaimMisbound",
		},
		"grows": {
			s: ClaimState{
				Claim: with(bound, func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = size("2Gi") }), Volume: own,
			}, op: UpdateVolume,
		},
		"the node is told": {
			s: ClaimState{
				Claim:  with(bound, func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = size("2Gi") }),
				Volume: grown,
			}, op: Resized, reason: "VolumeResizeSuccessful",
		},
		"less is asked for after all": {
			s: ClaimState{
				Claim:  with(bound, func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = size("1500Mi") }),
				Volume: grown,
			}, op: Withdrawn, check: func(t *testing.T, s Step) {
				require.Equal(t, "1500Mi", s.Volume.Spec.Capacity.Storage().String())
				require.Equal(t, "2Gi", s.Claim.Status.Capacity.Storage().String(), "if the node has it already")
			},
		},
		"nothing is asked for after all": {
			s: ClaimState{Claim: bound, Volume: grown}, op: Withdrawn, check: func(t *testing.T, s Step) {
				require.Equal(t, "1Gi", s.Volume.Spec.Capacity.Storage().String())
			},
		},
		"others grow elsewhere": {
			s: ClaimState{
				Claim:  with(bound, func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = size("2Gi") }),
				Volume: volume("v", "1Gi", refTo(plain), func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound }),
			}, reason: "ExternalExpanding",
		},
		"deleted in use": {
			s: ClaimState{
				Claim:  with(bound, func(c *corev1.PersistentVolumeClaim) { deleted(c) }),
				Volume: own,
				Pods:   pods("n"),
			},
		},
		"deleted, used by a pod without a node": {
			s: ClaimState{
				Claim:  with(bound, func(c *corev1.PersistentVolumeClaim) { deleted(c) }),
				Volume: own,
				Pods:   pods(""),
			},
			op: UpdateClaim, check: func(t *testing.T, s Step) { require.Empty(t, s.Claim.Finalizers) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			step := PlanClaim(tt.s, time.Unix(1, 0))
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

// A claim belongs to an ephemeral volume only if the pod owns it.
func TestUseOfEphemeralVolumes(t *testing.T) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "1"},
		Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{{Name: "x", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}},
		}}
	c := claim("p-x")
	require.False(t, uses(p, c))
	c.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "1", Controller: new(true)},
	}
	require.True(t, uses(p, c))
}

func with(c *corev1.PersistentVolumeClaim, f func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c = c.DeepCopy()
	f(c)
	return c
}

func TestPlanVolume(t *testing.T) {
	mine := claim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" })
	own := func(v *corev1.PersistentVolume) {
		v.Annotations = map[string]string{helpers.AnnDynamicallyProvisioned: storage.Provisioner}
		v.Finalizers = append(v.Finalizers, storage.Finalizer)
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/v"}}
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	}
	at := func(p corev1.PersistentVolumePhase) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) { v.Status.Phase = p }
	}
	policy := func(p corev1.PersistentVolumeReclaimPolicy) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = p }
	}
	gone := func(v *corev1.PersistentVolume) { deleted(v) }
	boundBy := func(v *corev1.PersistentVolume) {
		v.Annotations = map[string]string{helpers.AnnBoundByController: "yes"}
	}
	for name, tt := range map[string]struct {
		v      *corev1.PersistentVolume
		claim  *corev1.PersistentVolumeClaim
		op     Op
		phase  corev1.PersistentVolumePhase
		reason string
	}{
		"new":  {v: volume("v", "1Gi", at("")), op: UpdateStatus, phase: corev1.VolumeAvailable},
		"free": {v: volume("v", "1Gi")},
		"for a claim by name": {
			v: volume("v", "1Gi",
				refTo(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}})), claim: mine,
		},
		"bound": {
			v: volume("v", "1Gi", refTo(mine)), claim: mine, op: UpdateStatus, phase: corev1.VolumeBound,
		},
		"the claim is gone": {
			v: volume("v", "1Gi", refTo(mine), at(corev1.VolumeBound)), op: UpdateStatus, phase: corev1.VolumeReleased,
		},
		"the claim is another one": {
			v:     volume("v", "1Gi", refTo(mine), at(corev1.VolumeBound)),
			claim: with(mine, func(c *corev1.PersistentVolumeClaim) { c.UID = "new" }), op: UpdateStatus,
			phase: corev1.VolumeReleased,
		},
		"retained": {v: volume("v", "1Gi", refTo(mine), at(corev1.VolumeReleased))},
		"cannot be recycled": {
			v:  volume("v", "1Gi", refTo(mine), at(corev1.VolumeReleased), policy(corev1.PersistentVolumeReclaimRecycle)),
			op: UpdateStatus, phase: corev1.VolumeFailed, reason: "VolumeFailedRecycle",
		},
		"nobody can delete it": {
			v:  volume("v", "1Gi", refTo(mine), at(corev1.VolumeReleased), policy(corev1.PersistentVolumeReclaimDelete)),
			op: UpdateStatus, phase: corev1.VolumeFailed, reason: "VolumeFailedDelete",
		},
		"ours is deleted": {
			v: volume("v", "1Gi", own, refTo(mine), at(corev1.VolumeReleased)), op: DeleteVolume,
		},
		"after its directory": {
			v: volume("v", "1Gi", own, refTo(mine), at(corev1.VolumeReleased), gone), op: RemoveDirectory,
		},
		"also after a failure": {
			v: volume("v", "1Gi", own, refTo(mine), at(corev1.VolumeFailed), gone), op: RemoveDirectory,
		},
		"not while it is bound": {v: volume("v", "1Gi", own, refTo(mine), at(corev1.VolumeBound), gone), claim: mine},
		"ours is retained": {
			v: volume("v", "1Gi", own, policy(corev1.PersistentVolumeReclaimRetain), refTo(mine), at(corev1.VolumeReleased),
				gone), op: UpdateVolume,
		},
		"deleted before it was used": {v: volume("v", "1Gi", own, gone), op: RemoveDirectory},
		"deleted":                    {v: volume("v", "1Gi", gone), op: UpdateVolume},
		"unprotected": {
			v: volume("v", "1Gi", func(v *corev1.PersistentVolume) { v.Finalizers = nil }), op: UpdateVolume,
		},
		"the claim took another volume": {v: volume("w", "1Gi", refTo(mine), boundBy), claim: mine, op: UpdateVolume},
		"ours was made for nothing": {
			v: volume("w", "1Gi", own, refTo(mine)), claim: mine, op: UpdateStatus, phase: corev1.VolumeReleased,
		},
	} {
		t.Run(name, func(t *testing.T) {
			step := PlanVolume(tt.v, tt.claim)
			require.Equal(t, tt.op, step.Op)
			if tt.op == UpdateStatus {
				require.Equal(t, tt.phase, step.Volume.Status.Phase)
			}
			if tt.reason != "" {
				require.Equal(t, tt.reason, step.Event.Reason)
			}
		})
	}
}
