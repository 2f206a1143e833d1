// Package view converts between the objects of the cluster and the types of the REST API.
//
// Its functions are pure. Results may share memory with arguments, which are only modified where a comment says so.
package view

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The annotations of objects that were created over REST.
const (
	// NameAnnotation is the client's name for the object. It is not unique and need not be a valid object name.
	NameAnnotation = "rest.coracle.dev/name"
	// RestartPolicyAnnotation is the restart policy of a task's request.
	RestartPolicyAnnotation = "rest.coracle.dev/restart-policy"
	// AddressAnnotation is the address and port of an external worker, HostnameAnnotation the name it registered with.
	AddressAnnotation  = "rest.coracle.dev/address"
	HostnameAnnotation = "rest.coracle.dev/hostname"
)

// Managed is the label of objects that were created over REST; its value is "true".
const Managed = "rest.coracle.dev/managed"

// separator separates the parts of IDs. It cannot occur in object names, and needs no escaping in URLs.
const separator = "~"

// ID returns the ID of a pod or service: its name, prefixed by the namespace unless that is own, the facade's
// namespace.
func ID(namespace, own, name string) string {
	if namespace == own {
		return name
	}
	return namespace + separator + name
}

// ParseID is the inverse of ID.
func ParseID(id, own string) (namespace, name string) {
	if namespace, name, ok := strings.Cut(id, separator); ok {
		return namespace, name
	}
	return own, id
}

// name returns the client's name, or else the object's.
func name(o metav1.Object) string {
	if n := o.GetAnnotations()[NameAnnotation]; n != "" {
		return n
	}
	return o.GetName()
}

// containerID strips the type from a runtime ID of the form type://ID.
func containerID(id string) string {
	if _, bare, ok := strings.Cut(id, "://"); ok {
		return bare
	}
	return id
}

// WorkerRuntime is the type in the runtime IDs of external workers' containers.
const WorkerRuntime = "podling"

func when(t *metav1.Time) *time.Time {
	if t == nil || t.IsZero() {
		return nil
	}
	return &t.Time
}

// userMetadata returns labels or annotations without the facade's own.
func userMetadata(m map[string]string) map[string]string {
	var out map[string]string
	for k, v := range m {
		if strings.HasPrefix(k, "rest.coracle.dev/") {
			continue
		}
		if out == nil {
			out = make(map[string]string, len(m))
		}
		out[k] = v
	}
	return out
}
