package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Column is a column of kubectl get on API servers where the kind is a custom resource. Such a server prints a
// field; Coracle's prints the result of Cells.
//
// +kubebuilder:object:generate=false
type Column struct {
	metav1.TableColumnDefinition
	// Path is the JSON path of the field.
	Path string
}

func printed(kind, name, path, about string, priority int32) Column {
	return Column{metav1.TableColumnDefinition{Name: name, Type: kind, Description: about, Priority: priority}, path}
}

// Printed returns the columns of a kind except the name. Columns with priority 1 are shown only with -o wide.
func Printed(kind string) []Column {
	age := printed("date", "Age", ".metadata.creationTimestamp", "Time since its creation", 0)
	message := func(path string) Column {
		return printed("string", "Message", path, "What is wrong, and what to do", 1)
	}
	object := []Column{
		printed("string", "Kind", ".state.target.kind", "The kind of the object", 0),
		printed("string", "Object", ".state.target.name", "The name of the object", 0),
		printed("string", "Cluster", ".state.cluster", "The cluster", 0),
		printed("integer", "Generation", ".state.generation", "The Resource's generation", 0),
		printed("integer", "Revision", ".state.revision", "The Resource's revision", 0),
	}
	switch kind {
	case "Cluster":
		return []Column{
			printed("string", "Ready", ".status.conditions[?(@.type=='Ready')].reason", "Whether it answers, or why not", 0),
			printed("string", "Version", ".status.version", "The version of its API server", 0),
			printed("date", "Last Seen", ".status.lastSeen", "Time since it answered last", 0), age,
			printed("string", "Server", ".status.server", "The address of its API server", 1),
			message(".status.conditions[?(@.type=='Ready')].message"),
		}
	case "Resource":
		return []Column{
			printed("string", "Kind", ".spec.template.kind", "The kind of the object", 0),
			printed("string", "Object", ".spec.template.metadata.name", "The name of the object", 0),
			printed("integer", "Synced", ".status.clusters.synced", "The clusters in sync", 0),
			printed("integer", "Clusters", ".status.clusters.total", "The clusters that should have it", 0),
			printed("string", "State", ".status.state", "The worst state on any cluster", 0),
			printed("integer", "Revision", ".spec.revision", "The revision of its content", 0),
			printed("string", "Mode", ".spec.mode", "What is done about drift", 0), age, message(".status.message"),
		}
	case "Bundle":
		return []Column{
			printed("integer", "Objects", ".status.objects", "How many objects it has", 0),
			printed("integer", "Synced", ".status.clusters.synced", "The clusters in sync", 0),
			printed("integer", "Clusters", ".status.clusters.total", "The clusters that should have it", 0),
			printed("string", "Phase", ".status.phase", "How far it is", 0), age, message(".status.message"),
		}
	case "AppliedState":
		return append(object, printed("string", "Status", ".state.status", "The result of the last attempt", 0),
			printed("date", "Applied", ".state.appliedAt", "Time since it was applied last", 0),
			message(".state.error"))
	}
	return append(object, printed("string", "Health", ".state.health", "Whether it works", 0),
		printed("integer", "Drift", ".state.driftCount", "How many fields others changed", 0),
		printed("date", "Seen", ".state.time", "Time since anything changed", 0), message(".state.error"))
}
