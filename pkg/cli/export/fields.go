package export

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const nameLabel = "kubernetes.io/metadata.name"

// people are the metadata fields that users set. Owner references are omitted, because UIDs differ between
// clusters. Finalizers are omitted, because their controllers add them again.
var people = []string{"name", "namespace", "labels", "annotations"}

// recorded are annotations in which controllers and kubectl store state.
var recorded = []string{
	"kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/revision",
	"deprecated.daemonset.template.generation",
	"pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller", "volume.kubernetes.io/selected-node",
	"volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner",
	"batch.kubernetes.io/cronjob-scheduled-timestamp",
	"control-plane.alpha.kubernetes.io/leader",
}

// jobLabels tie a Job to its pods by its UID, which differs in another cluster.
var jobLabels = []string{
	"batch.kubernetes.io/controller-uid", "controller-uid", "batch.kubernetes.io/job-name", "job-name",
}

func reduce(k kind, o *unstructured.Unstructured) {
	bound := o.GetAnnotations()["pv.kubernetes.io/bound-by-controller"] != ""
	if k.status {
		delete(o.Object, "status")
	}
	if m, ok := o.Object["metadata"].(map[string]any); ok {
		maps.DeleteFunc(m, func(field string, _ any) bool { return !slices.Contains(people, field) })
	}
	drop(o.Object, recorded, "metadata", "annotations")
	spec := []string{"spec"}
	switch k.name() {
	case "namespaces":
		drop(o.Object, []string{nameLabel}, "metadata", "labels")
		drop(o.Object, []string{"finalizers"}, spec...)
	case "services":
		if text(o, "spec", "clusterIP") != "None" {
			drop(o.Object, []string{"clusterIP", "clusterIPs"}, spec...)
		}
	case "pods":
		reducePod(o)
	case "jobs.batch":
		if manual, _, _ := unstructured.NestedBool(o.Object, "spec", "manualSelector"); !manual {
			drop(o.Object, jobLabels, "spec", "selector", "matchLabels")
			drop(o.Object, jobLabels, "spec", "template", "metadata", "labels")
			drop(o.Object, jobLabels, "metadata", "labels")
		}
	case "statefulsets.apps":
		claims, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "volumeClaimTemplates")
		list, _ := claims.([]any)
		for _, c := range list {
			if m, ok := c.(map[string]any); ok {
				delete(m, "status")
			}
		}
	case "persistentvolumeclaims":
		if bound {
			drop(o.Object, []string{"volumeName"}, spec...)
		}
	case "persistentvolumes":
		if bound {
			drop(o.Object, []string{"claimRef"}, spec...)
		}
		drop(o.Object, []string{"uid", "resourceVersion"}, "spec", "claimRef")
	case "clusterroles.rbac.authorization.k8s.io":
		if o.Object["aggregationRule"] != nil {
			delete(o.Object, "rules") // the aggregation controller fills them in
		}
	}
}

func reducePod(o *unstructured.Unstructured) {
	drop(o.Object, []string{"nodeName", "priority", "preemptionPolicy", "ephemeralContainers"}, "spec")
	spec, _ := o.Object["spec"].(map[string]any)
	remove(spec, "volumes", access)
	for _, field := range []string{"containers", "initContainers"} {
		list, _ := spec[field].([]any)
		for _, c := range list {
			if m, ok := c.(map[string]any); ok {
				remove(m, "volumeMounts", access)
			}
		}
	}
}

// access reports whether a volume is the token volume that admission adds.
func access(volume map[string]any) bool {
	name, _ := volume["name"].(string)
	return strings.HasPrefix(name, "kube-api-access-")
}

// remove removes matching items from a list field, and the field if the list becomes empty.
func remove(o map[string]any, field string, which func(map[string]any) bool) {
	list, ok := o[field].([]any)
	if !ok {
		return
	}
	list = slices.DeleteFunc(list, func(v any) bool {
		m, ok := v.(map[string]any)
		return ok && which(m)
	})
	if o[field] = list; len(list) == 0 {
		delete(o, field)
	}
}

// drop removes keys from the map at path, and maps on the path that become empty.
func drop(o map[string]any, keys []string, path ...string) {
	if len(path) == 0 {
		for _, key := range keys {
			delete(o, key)
		}
		return
	}
	next, ok := o[path[0]].(map[string]any)
	if !ok {
		return
	}
	before := len(next)
	if drop(next, keys, path[1:]...); before > 0 && len(next) == 0 {
		delete(o, path[0])
	}
}
