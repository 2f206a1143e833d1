package object

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// HealthOf returns an object's health and the reason, by the rules of kstatus (sigs.k8s.io/cli-utils): built-in kinds
// by their own status, others by observedGeneration and the conditions Reconciling, Stalled and Ready.
func HealthOf(o *unstructured.Unstructured) (kontrol.Health, string) {
	if o.GetDeletionTimestamp() != nil {
		return kontrol.HealthProgressing, "the object is being deleted"
	}
	if seen, ok, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); ok && seen < o.GetGeneration() {
		return kontrol.HealthProgressing, fmt.Sprintf("generation %d is not observed yet", o.GetGeneration())
	}
	if status, message, ok := condition(o, "Stalled"); ok && status == "True" {
		return kontrol.HealthDegraded, message
	}
	if status, message, ok := condition(o, "Reconciling"); ok && status == "True" {
		return kontrol.HealthProgressing, message
	}
	gvk := o.GroupVersionKind()
	if f := byKind[schema.GroupKind{Group: gvk.Group, Kind: gvk.Kind}]; f != nil {
		return f(o)
	}
	if status, message, ok := condition(o, "Ready"); ok && status != "True" {
		return kontrol.HealthProgressing, message
	}
	return kontrol.HealthHealthy, ""
}

var byKind = map[schema.GroupKind]func(*unstructured.Unstructured) (kontrol.Health, string){
	{Group: "apps", Kind: "Deployment"}:                               deployment,
	{Group: "apps", Kind: "StatefulSet"}:                              statefulSet,
	{Group: "apps", Kind: "DaemonSet"}:                                daemonSet,
	{Group: "apps", Kind: "ReplicaSet"}:                               replicaSet,
	{Group: "batch", Kind: "Job"}:                                     job,
	{Kind: "Pod"}:                                                     pod,
	{Kind: "PersistentVolumeClaim"}:                                   claim,
	{Kind: "Service"}:                                                 service,
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}: definition,
}

func deployment(o *unstructured.Unstructured) (kontrol.Health, string) {
	for _, t := range []string{"Progressing", "ReplicaFailure"} {
		status, message, _ := condition(o, t)
		if t == "Progressing" && status == "False" || t == "ReplicaFailure" && status == "True" {
			return kontrol.HealthDegraded, message
		}
	}
	want := number(o, 1, "spec", "replicas")
	switch updated, all, available := number(o, 0, "status", "updatedReplicas"), number(o, 0, "status", "replicas"),
		number(o, 0, "status", "availableReplicas"); {
	case updated < want:
		return progress(updated, want, "updated")
	case all > updated:
		return kontrol.HealthProgressing, fmt.Sprintf("%d old replicas are still running", all-updated)
	case available < want:
		return progress(available, want, "available")
	}
	return kontrol.HealthHealthy, ""
}

func statefulSet(o *unstructured.Unstructured) (kontrol.Health, string) {
	want := number(o, 1, "spec", "replicas")
	if ready := number(o, 0, "status", "readyReplicas"); ready < want {
		return progress(ready, want, "ready")
	}
	current, _, _ := unstructured.NestedString(o.Object, "status", "currentRevision")
	next, _, _ := unstructured.NestedString(o.Object, "status", "updateRevision")
	kind, _, _ := unstructured.NestedString(o.Object, "spec", "updateStrategy", "type")
	if _, partial,
		_ := unstructured.NestedInt64(o.Object, "spec", "updateStrategy", "rollingUpdate", "partition"); current != next &&
		kind != "OnDelete" && !partial {
		return progress(number(o, 0, "status", "updatedReplicas"), want, "updated")
	}
	return kontrol.HealthHealthy, ""
}

func daemonSet(o *unstructured.Unstructured) (kontrol.Health, string) {
	if _, ok, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); !ok {
		return kontrol.HealthProgressing, "the controller has not observed the object yet"
	}
	want := number(o, 0, "status", "desiredNumberScheduled")
	if kind, _, _ := unstructured.NestedString(o.Object, "spec", "updateStrategy", "type"); kind != "OnDelete" {
		if updated := number(o, 0, "status", "updatedNumberScheduled"); updated < want {
			return progress(updated, want, "updated")
		}
	}
	if ready := number(o, 0, "status", "numberReady"); ready < want {
		return progress(ready, want, "ready")
	}
	return kontrol.HealthHealthy, ""
}

func replicaSet(o *unstructured.Unstructured) (kontrol.Health, string) {
	if status, message, _ := condition(o, "ReplicaFailure"); status == "True" {
		return kontrol.HealthDegraded, message
	}
	if want, have := number(o, 1, "spec", "replicas"), number(o, 0, "status", "availableReplicas"); have < want {
		return progress(have, want, "available")
	}
	return kontrol.HealthHealthy, ""
}

func job(o *unstructured.Unstructured) (kontrol.Health, string) {
	if status, message, _ := condition(o, "Failed"); status == "True" {
		return kontrol.HealthDegraded, message
	}
	if status, _, _ := condition(o, "Complete"); status == "True" {
		return kontrol.HealthHealthy, ""
	}
	if number(o, 0, "status", "active") == 0 && number(o, 0, "status", "ready") == 0 {
		return kontrol.HealthProgressing, "no pod has started"
	}
	return kontrol.HealthHealthy, "the job is running"
}

func pod(o *unstructured.Unstructured) (kontrol.Health, string) {
	containers, _, _ := unstructured.NestedSlice(o.Object, "status", "containerStatuses")
	for _, c := range containers {
		m, _ := c.(map[string]any)
		name, _ := m["name"].(string)
		if reason, _, _ := unstructured.NestedString(m, "state", "waiting", "reason"); reason == "CrashLoopBackOff" ||
			reason == "ImagePullBackOff" || reason == "ErrImagePull" {
			return kontrol.HealthDegraded, "container " + name + ": " + reason
		}
	}
	switch phase, _, _ := unstructured.NestedString(o.Object, "status", "phase"); phase {
	case "Failed":
		message, _, _ := unstructured.NestedString(o.Object, "status", "message")
		return kontrol.HealthDegraded, "the pod failed: " + message
	case "Succeeded":
		return kontrol.HealthHealthy, ""
	case "Running":
		if status, message, _ := condition(o, "Ready"); status == "True" {
			return kontrol.HealthHealthy, ""
		} else {
			return kontrol.HealthProgressing, message
		}
	}
	return kontrol.HealthProgressing, "the pod does not run yet"
}

func claim(o *unstructured.Unstructured) (kontrol.Health, string) {
	switch phase, _, _ := unstructured.NestedString(o.Object, "status", "phase"); phase {
	case "Bound":
		return kontrol.HealthHealthy, ""
	case "Lost":
		return kontrol.HealthDegraded, "the volume is lost"
	}
	return kontrol.HealthProgressing, "the claim has no volume yet"
}

func service(o *unstructured.Unstructured) (kontrol.Health, string) {
	if kind, _, _ := unstructured.NestedString(o.Object, "spec", "type"); kind == "LoadBalancer" {
		if in, _, _ := unstructured.NestedSlice(o.Object, "status", "loadBalancer", "ingress"); len(in) == 0 {
			return kontrol.HealthProgressing, "the load balancer has no address yet"
		}
	}
	return kontrol.HealthHealthy, ""
}

func definition(o *unstructured.Unstructured) (kontrol.Health, string) {
	if status, message, _ := condition(o, "NamesAccepted"); status == "False" {
		return kontrol.HealthDegraded, message
	}
	if status, _, _ := condition(o, "Established"); status != "True" {
		return kontrol.HealthProgressing, "the kind is not served yet"
	}
	return kontrol.HealthHealthy, ""
}

func progress(have, want int64, what string) (kontrol.Health, string) {
	return kontrol.HealthProgressing, fmt.Sprintf("%d of %d replicas are %s", have, want, what)
}

func number(o *unstructured.Unstructured, otherwise int64, path ...string) int64 {
	if n, ok, _ := unstructured.NestedInt64(o.Object, path...); ok {
		return n
	}
	return otherwise
}

func condition(o *unstructured.Unstructured, kind string) (status, message string, ok bool) {
	list, _, _ := unstructured.NestedFieldNoCopy(o.Object, "status", "conditions")
	all, _ := list.([]any)
	for _, c := range all {
		m, _ := c.(map[string]any)
		if m["type"] != kind {
			continue
		}
		status, _ = m["status"].(string)
		if message, _ = m["message"].(string); message == "" {
			message, _ = m["reason"].(string)
		}
		return status, bounded.Text(message, kontrol.MaxError), true
	}
	return "", "", false
}
