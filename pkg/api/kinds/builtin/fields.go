package builtin

import (
	"cmp"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Fields are the fields that field selectors may use, as upstream.

var metaFields = kind.MetaFields()

var jobFields = kind.SelectFields([]string{"status.successful"}, func(j *batchv1.Job, v []string) []string {
	return append(v, strconv.Itoa(int(j.Status.Succeeded)))
})

var controllerFields = kind.SelectFields([]string{"status.replicas"},
	func(c *corev1.ReplicationController, v []string) []string {
		return append(v, strconv.Itoa(int(c.Status.Replicas)))
	})

var podFields = kind.SelectFields([]string{
	"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
	"spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
},
	func(p *corev1.Pod, v []string) []string {
		ip := ""
		if len(p.Status.PodIPs) > 0 {
			ip = p.Status.PodIPs[0].IP
		}
		return append(v, p.Spec.NodeName, string(p.Spec.RestartPolicy), p.Spec.SchedulerName, p.Spec.ServiceAccountName,
			strconv.FormatBool(p.Spec.HostNetwork), string(p.Status.Phase), ip, p.Status.NominatedNodeName)
	})

var nodeFields = kind.SelectFields([]string{"spec.unschedulable"}, func(n *corev1.Node, v []string) []string {
	return append(v, strconv.FormatBool(n.Spec.Unschedulable))
})

var namespaceFields = kind.SelectFields([]string{"status.phase"}, func(n *corev1.Namespace, v []string) []string {
	return append(v, string(n.Status.Phase))
})

var secretFields = kind.SelectFields([]string{"type"}, func(s *corev1.Secret, v []string) []string {
	return append(v, string(s.Type))
})

var serviceFields = kind.SelectFields([]string{"spec.clusterIP", "spec.type"},
	func(s *corev1.Service, v []string) []string {
		return append(v, s.Spec.ClusterIP, string(s.Spec.Type))
	})

var eventFields = kind.SelectFields([]string{
	"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
	"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
	"reportingComponent", "source", "type",
},
	func(e *corev1.Event, v []string) []string {
		source := cmp.Or(e.Source.Component, e.ReportingController)
		return append(involved(v, &e.InvolvedObject), e.Reason, e.ReportingController, source, e.Type)
	})

var newEventFields = kind.SelectFields([]string{
	"regarding.kind", "regarding.namespace", "regarding.name", "regarding.uid",
	"regarding.apiVersion", "regarding.resourceVersion", "regarding.fieldPath", "reason", "reportingController", "type",
},
	func(e *eventsv1.Event, v []string) []string {
		return append(involved(v, &e.Regarding), e.Reason, e.ReportingController, e.Type)
	})

func involved(v []string, o *corev1.ObjectReference) []string {
	return append(v, o.Kind, o.Namespace, o.Name, string(o.UID), o.APIVersion, o.ResourceVersion, o.FieldPath)
}
