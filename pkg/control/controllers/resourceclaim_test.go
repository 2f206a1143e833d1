package controllers_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

func deviceSlice(node string, devices ...resourcev1.Device) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-gpus"}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: &node,
			Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}, Devices: devices},
	}
}

func deviceSpec(class string) resourcev1.ResourceClaimSpec {
	return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
		{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class}}}}}
}

func devicePod(name, template string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{
			{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}},
		},
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}}}
}

// TestDevices: each pod gets a claim from its template, and a device of its own. Upstream's roles suffice.
func TestDevices(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelError, HTTP: true})
	c.Node("n1")
	c.Node("n2")
	c.Make(
		&resourcev1.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{
				{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "gpu.example.com"`}}}},
		},
		deviceSlice("n1", resourcev1.Device{Name: "gpu-0"}),
		deviceSlice("n2", resourcev1.Device{Name: "gpu-0"},
			resourcev1.Device{
				Name: "gpu-1", Taints: []resourcev1.DeviceTaint{{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoSchedule}},
			}),
	)
	template := &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpu"},
		Spec:       resourcev1.ResourceClaimTemplateSpec{Spec: deviceSpec("gpu")},
	}
	c.Make(template, devicePod("a", "gpu"), devicePod("b", "gpu"))
	bound := func(p *corev1.Pod) bool { return p.Spec.NodeName != "" }
	a := controlplane.Until(c, &corev1.PodList{}, "default", "a", bound)
	b := controlplane.Until(c, &corev1.PodList{}, "default", "b", bound)
	require.NotEqual(t, a.Spec.NodeName, b.Spec.NodeName, "each node has one device that is not tainted")
	claim := func(p *corev1.Pod) *resourcev1.ResourceClaim {
		require.Len(t, p.Status.ResourceClaimStatuses, 1)
		return controlplane.Until(c, &resourcev1.ResourceClaimList{}, "default",
			*p.Status.ResourceClaimStatuses[0].ResourceClaimName,
			func(r *resourcev1.ResourceClaim) bool {
				return len(r.Status.ReservedFor) == 1 && r.Status.ReservedFor[0].UID == p.UID
			})
	}
	got := claim(a)
	require.Equal(t, a.Spec.NodeName, got.Status.Allocation.Devices.Results[0].Pool)
	require.Contains(t, got.Finalizers, resourcev1.Finalizer)
	require.True(t, metav1.IsControlledBy(got, a))
	claim(b)

	// A third pod waits until the first pod and its claim are gone.
	c.Make(devicePod("c", "gpu"), devicePod("d", "missing"))
	controlplane.Until(c, &corev1.PodList{}, "default", "c", func(p *corev1.Pod) bool {
		return len(p.Status.Conditions) > 0 &&
			strings.Contains(p.Status.Conditions[0].Message, "2 cannot allocate all claims")
	})
	require.NoError(t, c.Delete(c.Ctx, a))
	third := controlplane.Until(c, &corev1.PodList{}, "default", "c", bound)
	require.Equal(t, a.Spec.NodeName, third.Spec.NodeName)
	c.Gone(got)

	// A rule that taints the free device keeps pods without a toleration away.
	rule := &resourcev1.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: "service"}, Spec: resourcev1.DeviceTaintRuleSpec{
			DeviceSelector: &resourcev1.DeviceTaintSelector{Pool: &b.Spec.NodeName},
			Taint:          resourcev1.DeviceTaint{Key: "service", Effect: resourcev1.DeviceTaintEffectNoSchedule}},
	}
	c.Make(rule)
	require.NoError(t, c.Delete(c.Ctx, b))
	c.Gone(b)
	missing := &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "missing"}, Spec: template.Spec,
	}
	c.Make(missing)
	controlplane.Until(c, &corev1.PodList{}, "default", "d", func(p *corev1.Pod) bool {
		return len(p.Status.ResourceClaimStatuses) == 1 && len(p.Status.Conditions) > 0 &&
			strings.Contains(p.Status.Conditions[0].Message, "2 cannot allocate all claims")
	})
	require.NoError(t, c.Delete(c.Ctx, rule))
	controlplane.Until(c, &corev1.PodList{}, "default", "d", bound)

	// A claim that two pods share is allocated once, and stays until both are gone.
	c.Node("n3")
	c.Make(deviceSlice("n3", resourcev1.Device{Name: "gpu-0"}), &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shared"}, Spec: deviceSpec("gpu"),
	})
	shared := "shared"
	for _, name := range []string{"e", "f"} {
		p := devicePod(name, "")
		p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &shared}
		c.Make(p)
		require.Equal(t, "n3", controlplane.Until(c, &corev1.PodList{}, "default", name, bound).Spec.NodeName)
	}
	users := func(n int) func(*resourcev1.ResourceClaim) bool {
		return func(r *resourcev1.ResourceClaim) bool {
			return len(r.Status.ReservedFor) == n && (r.Status.Allocation != nil) == (n > 0)
		}
	}
	controlplane.Until(c, &resourcev1.ResourceClaimList{}, "default", "shared", users(2))
	for i, name := range []string{"e", "f"} {
		require.NoError(t, c.Delete(c.Ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}))
		controlplane.Until(c, &resourcev1.ResourceClaimList{}, "default", "shared", users(1-i))
	}
	require.Eventually(t, func() bool {
		var r resourcev1.ResourceClaim
		return c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "default", Name: "shared"}, &r) == nil && len(r.Finalizers) == 0
	}, controlplane.Patience, 2*time.Millisecond)
}

// TestDeviceTaints: pods that do not tolerate NoExecute taints of drivers or rules are evicted from the devices. A
// rule's status says how many.
func TestDeviceTaints(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelError, HTTP: true})
	c.Node("n1")
	slice := deviceSlice("n1", resourcev1.Device{Name: "gpu-0"}, resourcev1.Device{Name: "gpu-1"},
		resourcev1.Device{Name: "gpu-2"})
	c.Make(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}, slice)
	for name, tolerations := range map[string][]resourcev1.DeviceToleration{
		"plain":   nil,
		"patient": {{Operator: resourcev1.DeviceTolerationOpExists, Effect: resourcev1.DeviceTaintEffectNoExecute}},
	} {
		spec := deviceSpec("gpu")
		spec.Devices.Requests[0].Exactly.Tolerations = tolerations
		c.Make(&resourcev1.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       resourcev1.ResourceClaimTemplateSpec{Spec: spec},
		})
	}
	reserved := func(name string) (*corev1.Pod, string) {
		p := controlplane.Until(c, &corev1.PodList{}, "default", name, func(p *corev1.Pod) bool {
			return p.Spec.NodeName != "" && len(p.Status.ResourceClaimStatuses) == 1
		})
		claim := controlplane.Until(c, &resourcev1.ResourceClaimList{}, "default",
			*p.Status.ResourceClaimStatuses[0].ResourceClaimName,
			func(r *resourcev1.ResourceClaim) bool {
				return len(r.Status.ReservedFor) == 1
			})
		return p, claim.Status.Allocation.Devices.Results[0].Device
	}
	c.Make(devicePod("a", "plain"), devicePod("b", "plain"), devicePod("patient", "patient"))
	a, first := reserved("a")
	b, second := reserved("b")
	stays, third := reserved("patient")
	require.Len(t, map[string]bool{first: true, second: true, third: true}, 3)
	// The reconciler may not have seen the claims yet when it sees the rule. The message then says how to trigger
	// an update.
	const want = "1 published device selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace"
	var rule *resourcev1.DeviceTaintRule
	for said := ""; !strings.Contains(said, want); {
		if rule != nil {
			require.Contains(t, said, "Recreate the DeviceTaintRule to trigger an update.")
			require.NoError(t, c.Delete(c.Ctx, rule))
			c.Gone(rule)
		}
		rule = &resourcev1.DeviceTaintRule{
			ObjectMeta: metav1.ObjectMeta{Name: "service"}, Spec: resourcev1.DeviceTaintRuleSpec{
				DeviceSelector: &resourcev1.DeviceTaintSelector{
					Driver: &slice.Spec.Driver,
					Pool:   &slice.Spec.Pool.Name,
					Device: &first,
				}, Taint: resourcev1.DeviceTaint{Key: "service", Effect: resourcev1.DeviceTaintEffectNone}},
		}
		c.Make(rule)
		controlplane.Until(c, &resourcev1.DeviceTaintRuleList{}, "", "service", func(r *resourcev1.DeviceTaintRule) bool {
			if len(r.Status.Conditions) != 1 || r.Status.Conditions[0].Reason != "NoEffect" || r.UID != rule.UID {
				return false
			}
			said = r.Status.Conditions[0].Message
			return true
		})
	}
	require.NoError(t,
		c.Patch(c.Ctx, rule, ctrl.RawPatch(types.MergePatchType, []byte(`{"spec":{"taint":{"effect":"NoExecute"}}}`))))
	c.Gone(a)

	var now resourcev1.ResourceSlice
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKeyFromObject(slice), &now))
	broken := now.DeepCopy()
	for i := range broken.Spec.Devices {
		broken.Spec.Devices[i].Taints = []resourcev1.DeviceTaint{
			{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoExecute},
		}
	}
	broken.Spec.Pool.Generation++
	require.NoError(t, c.Update(c.Ctx, broken))
	c.Gone(b)
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKeyFromObject(stays), stays))
	require.Nil(t, stays.DeletionTimestamp, "it tolerates them")

	// A pod that tolerates the taint for 0 s would be evicted at once, so it is not scheduled onto the devices
	// repeatedly.
	brief := deviceSpec("gpu")
	brief.Devices.Requests[0].Exactly.Tolerations = []resourcev1.DeviceToleration{
		{
			Operator: resourcev1.DeviceTolerationOpExists, Effect: resourcev1.DeviceTaintEffectNoExecute,
			TolerationSeconds: new(int64),
		},
	}
	c.Make(&resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "brief"},
		Spec:       resourcev1.ResourceClaimTemplateSpec{Spec: brief},
	}, devicePod("brief", "brief"))
	controlplane.Until(c, &corev1.PodList{}, "default", "brief", func(p *corev1.Pod) bool {
		return len(p.Status.Conditions) > 0 && strings.Contains(p.Status.Conditions[0].Message, "cannot allocate all claims")
	})
}
