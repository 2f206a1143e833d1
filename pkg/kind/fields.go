package kind

import (
	"fmt"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// selectable is what field selectors can ask of a kind.
type selectable struct {
	set   func(client.Object) fields.Set
	names []string
}

const (
	nameField      = "metadata.name"
	namespaceField = "metadata.namespace"
)

// clusterScoped drops the namespace, which upstream refuses in a selector of such kinds.
func (s selectable) clusterScoped() (func(client.Object) fields.Set, []string) {
	var names []string
	for _, n := range s.names {
		if n != namespaceField {
			names = append(names, n)
		}
	}
	return func(o client.Object) fields.Set {
		set := s.set(o)
		delete(set, namespaceField)
		return set
	}, names
}

// selectFields joins the metadata with a kind's own fields; the values are in the order of names.
func selectFields[P client.Object](names []string, values func(P, []string) []string) selectable {
	all := append([]string{nameField, namespaceField}, names...)
	return selectable{names: all, set: func(o client.Object) fields.Set {
		set := make(fields.Set, len(all))
		set[nameField], set[namespaceField] = o.GetName(), o.GetNamespace()
		var room [12]string
		for i, v := range values(o.(P), room[:0]) {
			set[names[i]] = v
		}
		return set
	}}
}

var metaFields = selectFields(nil, func(client.Object, []string) []string { return nil })

var jobFields = selectFields([]string{"status.successful"}, func(j *batchv1.Job, v []string) []string {
	return append(v, strconv.Itoa(int(j.Status.Succeeded)))
})

var controllerFields = selectFields([]string{"status.replicas"}, func(c *corev1.ReplicationController, v []string) []string {
	return append(v, strconv.Itoa(int(c.Status.Replicas)))
})

var podFields = selectFields([]string{"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
	"spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName"},
	func(p *corev1.Pod, v []string) []string {
		ip := ""
		if len(p.Status.PodIPs) > 0 {
			ip = p.Status.PodIPs[0].IP
		}
		return append(v, p.Spec.NodeName, string(p.Spec.RestartPolicy), p.Spec.SchedulerName, p.Spec.ServiceAccountName,
			strconv.FormatBool(p.Spec.HostNetwork), string(p.Status.Phase), ip, p.Status.NominatedNodeName)
	})

var nodeFields = selectFields([]string{"spec.unschedulable"}, func(n *corev1.Node, v []string) []string {
	return append(v, strconv.FormatBool(n.Spec.Unschedulable))
})

var namespaceFields = selectFields([]string{"status.phase"}, func(n *corev1.Namespace, v []string) []string {
	return append(v, string(n.Status.Phase))
})

var secretFields = selectFields([]string{"type"}, func(s *corev1.Secret, v []string) []string {
	return append(v, string(s.Type))
})

var serviceFields = selectFields([]string{"spec.clusterIP", "spec.type"}, func(s *corev1.Service, v []string) []string {
	return append(v, s.Spec.ClusterIP, string(s.Spec.Type))
})

var eventFields = selectFields([]string{"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
	"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type"},
	func(e *corev1.Event, v []string) []string {
		source := e.Source.Component
		if source == "" {
			source = e.ReportingController
		}
		return append(involved(v, &e.InvolvedObject), e.Reason, e.ReportingController, source, e.Type)
	})

var newEventFields = selectFields([]string{"regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid",
	"regarding.apiVersion", "regarding.resourceVersion", "regarding.fieldPath", "reason", "reportingController", "type"},
	func(e *eventsv1.Event, v []string) []string {
		return append(involved(v, &e.Regarding), e.Reason, e.ReportingController, e.Type)
	})

func involved(v []string, o *corev1.ObjectReference) []string {
	return append(v, o.Kind, o.Namespace, o.Name, string(o.UID), o.APIVersion, o.ResourceVersion, o.FieldPath)
}

// eventFieldNames are the fields of events.k8s.io that core events name differently.
var eventFieldNames = map[string]string{
	"regarding.kind": "involvedObject.kind", "regarding.namespace": "involvedObject.namespace", "regarding.name": "involvedObject.name",
	"regarding.uid": "involvedObject.uid", "regarding.apiVersion": "involvedObject.apiVersion",
	"regarding.resourceVersion": "involvedObject.resourceVersion", "regarding.fieldPath": "involvedObject.fieldPath",
	"reportingController": "reportingComponent",
}

// Selector checks a field selector of this row's kind, and gives it in the field names of the row
// that the objects are stored as. The error names the field that cannot be selected on.
func (r *Resource) Selector(s fields.Selector) (fields.Selector, error) {
	if s == nil || s.Empty() {
		return s, nil
	}
	known := make(map[string]bool, len(r.FieldNames))
	for _, n := range r.FieldNames {
		known[n] = true
	}
	return s.Transform(func(name, value string) (string, string, error) {
		if r.Kind == "Pod" && name == "spec.host" { // what clients before v1 sent
			name = "spec.nodeName"
		}
		if !known[name] {
			return "", "", fmt.Errorf("field label not supported: %s", name)
		}
		if stored, ok := eventFieldNames[name]; ok && r.StoredAs != nil {
			name = stored
		}
		return name, value, nil
	})
}

// Exact gives the value that a selector wants a field to have, if it wants one.
func Exact(s fields.Selector, name string) (string, bool) {
	if s == nil {
		return "", false
	}
	for _, r := range s.Requirements() {
		if r.Field == name && (r.Operator == selection.Equals || r.Operator == selection.DoubleEquals) {
			return r.Value, true
		}
	}
	return "", false
}
