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

// Device classes can serve extended resources (KEP-5004). If a node has no device plugin for such a resource, the
// scheduler creates a claim for the pod when it binds it, and the pod gets devices of the class.

// extendedClaim is the claim for a pod's extended resources that devices serve on one node.
type extendedClaim struct {
	claim    *resourcev1.ResourceClaim // not stored yet
	mappings []corev1.ContainerExtendedResourceRequest
}

// classesByResource maps extended resources to classes. A class serves the resource named after it. If several classes
// name the same extended resource, the newest serves it.
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

// served maps a pod's extended resources to their classes. It is empty until classes are known: the pod is retried.
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
	if d.start == nil || d.classes == nil { // without start, no watch reports changes of classes
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

// maybeDevices reports whether devices could serve any of the resources: those with a domain in their name.
func (a *amounts) maybeDevices() bool {
	for name, n := range a.extended {
		if n > 0 && strings.Contains(string(name), "/") {
			return true
		}
	}
	return false
}

// byDevices reports whether devices serve a resource on a node: it has a class, and the node no device plugin for it.
func (c *cycle) byDevices(name corev1.ResourceName, n *nodeInfo) bool {
	return c.served[name] != "" && n.most.extended[name] == 0
}

// earlier returns an earlier attempt's claim for the pod's extended resources, or nil. It may no longer fit.
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

// extendedRequests returns the device requests for the resources, and which request serves which container. Init
// containers that end use the devices of later containers, and share one request for what they need in addition.
// Names are upstream's.
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
		var most *resourcev1.DeviceRequest // the largest additional need of an init container
		var more []int                     // indexes of the mappings to most
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

func deviceRequest(i int, c *corev1.Container, name corev1.ResourceName, class string,
	n int64) *resourcev1.DeviceRequest {
	at := slices.Index(slices.Sorted(maps.Keys(c.Resources.Requests)), name)
	return &resourcev1.DeviceRequest{
		Name: fmt.Sprintf("container-%d-request-%d", i, at), Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n},
	}
}
