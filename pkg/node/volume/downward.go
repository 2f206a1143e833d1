package volume

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Field returns the value of a fieldRef, in a volume or an environment variable.
func Field(p *corev1.Pod, path, podIP, hostIP string) (string, error) {
	for _, k := range []struct {
		prefix string
		from   map[string]string
	}{{"metadata.annotations['", p.Annotations}, {"metadata.labels['", p.Labels}} {
		if key, ok := strings.CutPrefix(path, k.prefix); ok {
			if key, ok = strings.CutSuffix(key, "']"); ok {
				return k.from[key], nil
			}
		}
	}
	switch path {
	case "metadata.annotations":
		return lines(p.Annotations), nil
	case "metadata.labels":
		return lines(p.Labels), nil
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	case "spec.nodeName":
		return p.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	case "status.podIP", "status.podIPs":
		return podIP, nil
	case "status.hostIP", "status.hostIPs":
		return hostIP, nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %v", path)
}

func lines(m map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "%s=%s\n", k, strconv.Quote(m[k]))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Resource returns the value of a resourceFieldRef: the container's resource divided by the divisor, rounded up. A
// limit that is not set is the node's allocatable resource.
func Resource(p *corev1.Pod, r *corev1.ResourceFieldSelector, containerName string,
	allocatable corev1.ResourceList) (string, error) {
	name := cmp.Or(r.ContainerName, containerName)
	var c *corev1.Container
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				c = &list[i]
			}
		}
	}
	if c == nil {
		return "", fmt.Errorf("container %s not found", name)
	}
	kind, res, ok := strings.Cut(r.Resource, ".")
	if !ok {
		return "", fmt.Errorf("unsupported container resource: %v", r.Resource)
	}
	var q resource.Quantity
	var set bool
	switch kind {
	case "limits":
		if q, set = c.Resources.Limits[corev1.ResourceName(res)]; !set || q.IsZero() {
			if a, has := allocatable[corev1.ResourceName(res)]; has {
				q = a
			}
		}
	case "requests":
		q, set = c.Resources.Requests[corev1.ResourceName(res)]
		if !set {
			q = c.Resources.Limits[corev1.ResourceName(res)]
		}
	default:
		return "", fmt.Errorf("unsupported container resource: %v", r.Resource)
	}
	divisor := r.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if res == "cpu" {
		return strconv.FormatInt(int64(math.Ceil(float64(q.MilliValue())/float64(divisor.MilliValue()))), 10), nil
	}
	return strconv.FormatInt(int64(math.Ceil(float64(q.Value())/float64(divisor.Value()))), 10), nil
}
