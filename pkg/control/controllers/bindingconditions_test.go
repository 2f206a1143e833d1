package controllers_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/control/scheduler"
	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

// attached returns a device that is ready only once its driver sets the binding condition.
func attached(name string) resourcev1.Device {
	return resourcev1.Device{
		Name:                     name,
		BindsToNode:              new(true),
		BindingConditions:        []string{"example.com/attached"},
		BindingFailureConditions: []string{"example.com/broken"},
	}
}

// reported returns a copy of the claim whose device has one condition, which is true.
func reported(r *resourcev1.ResourceClaim, name string) *resourcev1.ResourceClaim {
	r = r.DeepCopy()
	of := r.Status.Allocation.Devices.Results[0]
	r.Status.Devices = []resourcev1.AllocatedDeviceStatus{
		{Driver: of.Driver, Pool: of.Pool, Device: of.Device, Conditions: []metav1.Condition{
			{
				Type: name, Status: metav1.ConditionTrue, Reason: "Tested", Message: "by the test",
				LastTransitionTime: metav1.Now(),
			}}},
	}
	return r
}

// says sets a condition of the claim's device to true, as its driver does.
func (c *cluster) says(claim, name string) {
	c.T.Helper()
	for {
		var r resourcev1.ResourceClaim
		require.NoError(c.T, c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "default", Name: claim}, &r))
		err := c.Status().Update(c.Ctx, reported(&r, name))
		if apierrors.IsConflict(err) {
			continue
		}
		require.NoError(c.T, err)
		return
	}
}

// driver sets a condition on each device of the pool that is allocated to a claim, until stop is called.
func (c *cluster) driver(pool, condition string) (stop func()) {
	c.T.Helper()
	ctx, cancel := context.WithCancel(c.Ctx)
	w, err := c.Watch(ctx, &resourcev1.ResourceClaimList{}, ctrl.InNamespace("default"))
	require.NoError(c.T, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() { w.Stop() }()
		for {
			select {
			case <-ctx.Done():
				return
			case e, open := <-w.ResultChan():
				if !open {
					again, err := c.Watch(ctx, &resourcev1.ResourceClaimList{}, ctrl.InNamespace("default"))
					if err != nil {
						if ctx.Err() == nil {
							c.T.Error(err)
						}
						return
					}
					w = again
					continue
				}
				r, ok := e.Object.(*resourcev1.ResourceClaim)
				if !ok || e.Type == watch.Deleted || r.Status.Allocation == nil ||
					r.Status.Allocation.Devices.Results[0].Pool != pool || len(r.Status.Devices) > 0 {
					continue
				}
				if err := c.Status().Update(ctx, reported(r, condition)); err != nil && !apierrors.IsConflict(err) &&
					!apierrors.IsNotFound(err) && ctx.Err() == nil {
					c.T.Error(err)
				}
			}
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	c.T.Cleanup(stop)
	return stop
}

// pending waits until a claim is allocated from the pool and reserved for a pod.
func (c *cluster) pending(claim string, pool string) *resourcev1.ResourceClaim {
	c.T.Helper()
	return controlplane.Until(c, &resourcev1.ResourceClaimList{}, "default", claim,
		func(r *resourcev1.ResourceClaim) bool {
			return r.Status.Allocation != nil && len(r.Status.ReservedFor) == 1 &&
				(pool == "" || r.Status.Allocation.Devices.Results[0].Pool == pool)
		})
}

func (c *cluster) hears(reason, text string) {
	c.T.Helper()
	controlplane.Until(c, &corev1.EventList{}, "default", "", func(e *corev1.Event) bool {
		return e.Reason == reason && strings.Contains(e.Message, text)
	})
}

func claimPod(name, claim string) *corev1.Pod {
	p := devicePod(name, "")
	p.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &claim}
	return anywhere(p)
}

// TestBindingConditions: a pod is bound once its devices are ready, and gets other devices if they fail. Meanwhile
// other pods are scheduled.
func TestBindingConditions(t *testing.T) {
	c := start(t, controlplane.Options{
		Agent:     true,
		Log:       slog.LevelError,
		HTTP:      true,
		Scheduler: func(s *scheduler.Config) { s.Binders = 1 },
	})
	c.Node("n1")
	first := deviceSlice("n1", attached("gpu-0"))
	c.Make(gpuClass(), first)
	for _, name := range []string{"a", "b"} {
		c.Make(&resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: deviceSpec("gpu"),
		})
	}
	c.Make(claimPod("a", "a"))
	a := c.pending("a", "n1")
	require.NotNil(t, a.Status.Allocation.AllocationTimestamp)
	require.NotNil(t, a.Status.Allocation.NodeSelector, "it is bound to the node")
	c.hears("BindingConditionsPending", "waiting for binding conditions for device on node n1")
	plain := anywhere(devicePod("plain", ""))
	plain.Spec.ResourceClaims, plain.Spec.Containers[0].Resources = nil, corev1.ResourceRequirements{}
	c.Make(plain)
	c.boundPod("plain")
	var p corev1.Pod
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "default", Name: "a"}, &p))
	require.Empty(t, p.Spec.NodeName)
	require.Equal(t, "n1", p.Status.NominatedNodeName)
	c.says("a", "example.com/other")
	c.says("a", "example.com/attached")
	bound := c.boundPod("a")
	require.Equal(t, "n1", bound.Spec.NodeName)
	require.Empty(t, bound.Status.NominatedNodeName)

	// A device that fails is released, and the pod gets another one, here as an extended resource.
	c.Make(deviceSlice("n2", attached("gpu-0")))
	c.Node("n2")
	c.Make(extendedPod("e", gpu, "1"))
	c.hears("BindingConditionsPending", "waiting for binding conditions for device on node n2")
	require.NoError(t, c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "default", Name: "e"}, &p))
	// An earlier attempt may have left another claim: the pod can change before the claim's name is in its status.
	var failed resourcev1.ResourceClaim
	require.NoError(t,
		c.Get(c.Ctx, ctrl.ObjectKey{Namespace: "default", Name: p.Status.ExtendedResourceClaimStatus.ResourceClaimName},
			&failed))
	c.Make(deviceSlice("n3", resourcev1.Device{Name: "gpu-0"}))
	c.Node("n3")
	require.NoError(t, c.Delete(c.Ctx, deviceSlice("n2")))
	// The scheduler may retry n2 until it sees that the slice is gone, so fail each attempt.
	stop := c.driver("n2", "example.com/broken")
	require.Equal(t, "n3", c.boundPod("e").Spec.NodeName)
	stop()
	c.hears("FailedScheduling", `device binding failed: claim=`+failed.Name+`, reason=Tested, message="by the test"`)
	c.Gone(&failed)

	// The same with a ResourceClaim that outlives the pod, and with a pod that is deleted while it waits.
	c.Make(deviceSlice("n2", attached("gpu-0")), claimPod("b", "b"))
	c.pending("b", "n2")
	require.NoError(t, c.Delete(c.Ctx, deviceSlice("n2")))
	stop = c.driver("n2", "example.com/broken")
	freed := func(r *resourcev1.ResourceClaim) bool {
		return r.Status.Allocation == nil && len(r.Status.Devices) == 0
	}
	controlplane.Until(c, &resourcev1.ResourceClaimList{}, "default", "b", freed)
	stop()
	c.Make(deviceSlice("n2", attached("gpu-1")))
	c.pending("b", "n2")
	require.NoError(t, c.Delete(c.Ctx, claimPod("b", "b")))
	controlplane.Until(c, &resourcev1.ResourceClaimList{}, "default", "b", freed)
}

// TestBindingConditionsThatNeverHold: after the timeout the devices are released, and the scheduler retries the pod.
func TestBindingConditionsThatNeverHold(t *testing.T) {
	c := start(t, controlplane.Options{
		Agent:     true,
		Log:       slog.LevelError,
		HTTP:      true,
		Scheduler: func(s *scheduler.Config) { s.DeviceTimeout = 2 * time.Second },
	})
	c.Node("n1")
	c.Make(gpuClass(), deviceSlice("n1", attached("gpu-0")),
		&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}, Spec: deviceSpec("gpu")},
		claimPod("a", "a"))
	before := c.pending("a", "n1").Status.Allocation.AllocationTimestamp.Time
	c.hears("FailedScheduling", "device binding timeout: claim=a")
	controlplane.Until(c, &resourcev1.ResourceClaimList{}, "default", "a", func(r *resourcev1.ResourceClaim) bool {
		return r.Status.Allocation != nil && r.Status.Allocation.AllocationTimestamp.After(before)
	})
	c.driver("n1", "example.com/attached") // a slow run may release the device once more
	c.boundPod("a")
}

// TestFirstAvailable: the scheduler prefers a node that can serve an early alternative of the list.
func TestFirstAvailable(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelError, HTTP: true})
	class := gpuClass()
	class.Spec.Selectors[0].CEL.Expression = `device.attributes["gpu.example.com"].model == "best"`
	c.Make(class, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "any"}})
	model := func(name string) map[resourcev1.QualifiedName]resourcev1.DeviceAttribute {
		return map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: &name}}
	}
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		c.Make(deviceSlice(name, resourcev1.Device{Name: "gpu-0", Attributes: model("good")}))
	}
	c.Make(deviceSlice("n5", resourcev1.Device{Name: "gpu-0", Attributes: model("best")},
		resourcev1.Device{Name: "gpu-1", Attributes: model("good")}))
	for _, name := range []string{"n1", "n2", "n3", "n4", "n5"} {
		c.Node(name)
	}
	probe := deviceSpec("any")
	probe.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{
		{CEL: &resourcev1.CELDeviceSelector{Expression: `device.attributes["gpu.example.com"].model == "good"`}},
	}
	c.Make(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "probe"}, Spec: probe})
	p := claimPod("probe", "probe")
	p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n5"}
	c.Make(p)
	c.boundPod("probe") // the scheduler has seen the node and its devices
	c.Make(&resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{
				{
					Name: "gpu",
					FirstAvailable: []resourcev1.DeviceSubRequest{
						{Name: "best", DeviceClassName: "gpu"}, {Name: "other", DeviceClassName: "any"},
					},
				},
			}}},
	})
	c.Make(claimPod("a", "a"))
	require.Equal(t, "n5", c.boundPod("a").Spec.NodeName)
}
