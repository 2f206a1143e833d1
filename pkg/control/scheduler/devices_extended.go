package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// Extended resources that device classes serve (KEP-5004): where a node has no device plugin with such a resource, the
// pod gets devices of the class by a claim that the scheduler makes for it when it is bound.

// extendedClaim is the claim for the extended resources of a pod that one node serves by devices.
type extendedClaim struct {
	claim    *resourcev1.ResourceClaim // not stored yet
	mappings []corev1.ContainerExtendedResourceRequest
}

// classesByResource returns the names of the classes that serve extended resources, by resource. Each class serves the
// resource that is named after it; of several for one resource, the newest does.
func classesByResource(classes []resourcev1.DeviceClass) map[corev1.ResourceName]string {
	out := make(map[corev1.ResourceName]string, len(classes))
	chosen := map[corev1.ResourceName]*resourcev1.DeviceClass{}
	for i := range classes {
		c := &classes[i]
		out[corev1.ResourceName(resourcev1.ResourceDeviceClassPrefix+c.Name)] = c.Name
		if c.Spec.ExtendedResourceName == nil {
			continue
		}
		name := corev1.ResourceName(*c.Spec.ExtendedResourceName)
		if o := chosen[name]; o == nil ||
			cmp.Or(c.CreationTimestamp.Compare(o.CreationTimestamp.Time), strings.Compare(o.Name, c.Name)) > 0 {
			chosen[name], out[name] = c, c.Name
		}
	}
	return out
}

// served returns the classes that serve extended resources of a pod, by resource. While classes are not known there are
// none; such pods are tried again when they are.
func (d *devices) served(need amounts) map[corev1.ResourceName]string {
	if d.allocator == nil || !need.maybeDevices() {
		return nil
	}
	if d.start != nil {
		d.start()
		if !d.synced() {
			return nil
		}
	}
	if d.start == nil || d.classes == nil { // without start no watch reports changes of the classes
		var list resourcev1.DeviceClassList
		if d.read.List(context.Background(), &list) != nil {
			return nil
		}
		d.classes = classesByResource(list.Items)
	}
	var out map[corev1.ResourceName]string
	for name, n := range need.extended {
		if class := d.classes[name]; class != "" && n > 0 {
			if out == nil {
				out = map[corev1.ResourceName]string{}
			}
			out[name] = class
		}
	}
	return out
}

// maybeDevices reports whether there are resources that devices could serve: huge pages and attachable volumes have no
// domain in their name.
func (a *amounts) maybeDevices() bool {
	for name, n := range a.extended {
		if n > 0 && strings.Contains(string(name), "/") {
			return true
		}
	}
	return false
}

// byDevices reports whether devices serve a resource of the pod on a node: there is a class for it, and no device
// plugin.
func (c *cycle) byDevices(name corev1.ResourceName, n *nodeInfo) bool {
	return c.served[name] != "" && n.most.extended[name] == 0
}

// earlier returns the claim that an earlier attempt made for the pod's extended resources, nil if there is none. Its
// devices may not be the right ones any more.
func (d *devices) earlier(pod *corev1.Pod) (*resourcev1.ResourceClaim, error) {
	var list resourcev1.ResourceClaimList
	if err := d.read.List(context.Background(), &list, ctrlclient.InNamespace(pod.Namespace)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if c := &list.Items[i]; isExtendedClaimOf(c, pod) {
			return c, nil
		}
	}
	return nil, nil //nolint:nilnil // there is none
}

func isExtendedClaimOf(c *resourcev1.ResourceClaim, pod *corev1.Pod) bool {
	return c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" && metav1.IsControlledBy(c, pod)
}

// newExtendedClaim returns the claim for the resources of a pod that devices of the given classes serve.
func newExtendedClaim(pod *corev1.Pod, classes map[corev1.ResourceName]string) (*extendedClaim, error) {
	requests, mappings := extendedRequests(&pod.Spec, classes)
	if len(requests) > resourcev1.DeviceRequestsMaxSize {
		return nil, fmt.Errorf("extended resources of the pod need %d requests for devices, at most %d are possible",
			len(requests), resourcev1.DeviceRequestsMaxSize)
	}
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true)}
	return &extendedClaim{mappings: mappings, claim: &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: "<extended-resources>", GenerateName: pod.Name + "-extended-resources-",
			UID:             types.UID("extended resources of pod " + string(pod.UID)), // until it is stored
			Annotations:     map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{owner},
		},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: requests}},
	}}, nil
}

// extendedRequests returns the requests for the resources that devices of the given classes serve, by name, and which
// of them each container uses. Init containers that end use the devices of the containers that start after them, and
// share what they need more. Names are upstream's.
func extendedRequests(spec *corev1.PodSpec,
	classes map[corev1.ResourceName]string) (requests []resourcev1.DeviceRequest,
	mappings []corev1.ContainerExtendedResourceRequest) {
	containers := slices.Concat(spec.InitContainers, spec.Containers)
	ends := func(i int) bool {
		r := containers[i].RestartPolicy
		return i < len(spec.InitContainers) && (r == nil || *r != corev1.ContainerRestartPolicyAlways)
	}
	for _, name := range slices.Sorted(maps.Keys(classes)) {
		uses := func(i int, request string) corev1.ContainerExtendedResourceRequest {
			return corev1.ContainerExtendedResourceRequest{
				ContainerName: containers[i].Name,
				ResourceName:  string(name),
				RequestName:   request,
			}
		}
		lasting := make([]*resourcev1.DeviceRequest, len(containers))
		for i := range containers {
			if n := wants(&containers[i], name); n > 0 && !ends(i) {
				lasting[i] = deviceRequest(i, &containers[i], name, classes[name], n)
				mappings = append(mappings, uses(i, lasting[i].Name))
			}
		}
		var most *resourcev1.DeviceRequest // what an init container needs more than it may use of others
		var more []int                     // mappings to most
		for i := range containers {
			n := wants(&containers[i], name)
			if n == 0 || !ends(i) {
				continue
			}
			for _, r := range lasting[i:] {
				if r != nil && n > 0 {
					mappings = append(mappings, uses(i, r.Name))
					n -= r.Exactly.Count
				}
			}
			if n <= 0 {
				continue
			}
			if most == nil || most.Exactly.Count < n {
				most = deviceRequest(i, &containers[i], name, classes[name], n)
			}
			more = append(more, len(mappings))
			mappings = append(mappings, uses(i, ""))
		}
		for _, i := range more {
			mappings[i].RequestName = most.Name
		}
		for _, r := range append(lasting, most) {
			if r != nil {
				requests = append(requests, *r)
			}
		}
	}
	slices.SortFunc(requests, func(a, b resourcev1.DeviceRequest) int { return strings.Compare(a.Name, b.Name) })
	return requests, mappings
}

func wants(c *corev1.Container, name corev1.ResourceName) int64 {
	q := c.Resources.Requests[name]
	return q.Value()
}

// deviceRequest is the request of container i for n devices in place of a resource.
func deviceRequest(i int, c *corev1.Container, name corev1.ResourceName, class string,
	n int64) *resourcev1.DeviceRequest {
	at := slices.Index(slices.Sorted(maps.Keys(c.Resources.Requests)), name)
	return &resourcev1.DeviceRequest{
		Name: fmt.Sprintf("container-%d-request-%d", i, at), Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n},
	}
}
