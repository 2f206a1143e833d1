package export

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/coracle-dev/coracle/apis/storage"
)

// own are objects that every cluster creates itself, as KIND NAMESPACE/NAME.
var own = map[string]bool{
	"services default/kubernetes": true, "services kube-system/kube-dns": true, "endpoints default/kubernetes": true,
	"endpointslices.discovery.k8s.io default/kubernetes":        true,
	"configmaps kube-system/extension-apiserver-authentication": true, "configmaps kube-public/cluster-info": true,
	"configmaps kube-system/kube-apiserver-legacy-service-account-token-tracking": true,
	"ingressclasses.networking.k8s.io /coracle":                                   true,
	"servicecidrs.networking.k8s.io /kubernetes":                                  true,
	"clusterrolebindings.rbac.authorization.k8s.io /coracle:node-proxier":         true,
	"flowschemas.flowcontrol.apiserver.k8s.io /exempt":                            true,
	"flowschemas.flowcontrol.apiserver.k8s.io /catch-all":                         true,
	"prioritylevelconfigurations.flowcontrol.apiserver.k8s.io /exempt":            true,
	"prioritylevelconfigurations.flowcontrol.apiserver.k8s.io /catch-all":         true,
}

// tokens are types of Secrets that are useless in another cluster or that grant access to this one.
var tokens = map[string]bool{
	"kubernetes.io/service-account-token": true,
	"bootstrap.kubernetes.io/token":       true,
	"coracle.dev/join-token":              true,
}

// omit reports whether to leave out an object as stored: a controller or server created it, it has finished, or it
// is being deleted.
func omit(k kind, o *unstructured.Unstructured) bool {
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	switch {
	case o.GetDeletionTimestamp() != nil, metav1.GetControllerOfNoCopy(o) != nil,
		own[k.name()+" "+o.GetNamespace()+"/"+o.GetName()]:
		return true
	case labels["kubernetes.io/bootstrapping"] == "rbac-defaults",
		labels["kube-aggregator.kubernetes.io/automanaged"] != "",
		annotations["apf.kubernetes.io/autoupdate-spec"] == "true":
		return true
	}
	switch k.name() {
	case "configmaps":
		return o.GetName() == "kube-root-ca.crt"
	case "secrets":
		return tokens[text(o, "type")]
	case "serviceaccounts":
		return o.GetName() == "default" && plain(o) && o.Object["imagePullSecrets"] == nil
	case "namespaces":
		return systemNamespace(o.GetName()) && plain(o)
	case "pods":
		return text(o, "status", "phase") == "Succeeded" || text(o, "status", "phase") == "Failed"
	case "jobs.batch":
		return is(o, "Complete") || is(o, "Failed")
	case "tasks.tasks.coracle.dev":
		return text(o, "status", "phase") == "Completed" || text(o, "status", "phase") == "Failed"
	case "endpoints":
		return labels["endpoints.kubernetes.io/managed-by"] == "endpoint-controller" ||
			annotations["endpoints.kubernetes.io/last-change-trigger-time"] != ""
	case "endpointslices.discovery.k8s.io":
		by := labels["endpointslice.kubernetes.io/managed-by"]
		return by == "endpointslice-controller.k8s.io" || by == "endpointslicemirroring-controller.k8s.io"
	case "persistentvolumes":
		return annotations["pv.kubernetes.io/provisioned-by"] != ""
	case "storageclasses.storage.k8s.io":
		return o.GetName() == storage.DefaultClass && text(o, "provisioner") == storage.Provisioner
	case "volumesnapshotcontents.snapshot.storage.k8s.io":
		return text(o, "spec", "source", "volumeHandle") != "" // taken in this cluster
	case "volumesnapshots.snapshot.storage.k8s.io": // created for a group snapshot
		return text(o, "spec", "source", "persistentVolumeClaimName") != "" &&
			slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
				return r.Kind == "VolumeGroupSnapshot"
			})
	case "volumegroupsnapshotcontents.groupsnapshot.storage.k8s.io":
		handles, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "source", "volumeHandles")
		return handles != nil // taken in this cluster
	case "volumesnapshotclasses.snapshot.storage.k8s.io":
		return o.GetName() == storage.DefaultClass && text(o, "driver") == storage.Provisioner
	case "priorityclasses.scheduling.k8s.io":
		return strings.HasPrefix(o.GetName(), "system-")
	case "clustertrustbundles.certificates.k8s.io":
		return strings.HasPrefix(o.GetName(), "kubernetes.io:")
	}
	return false
}

func systemNamespace(name string) bool {
	return name == metav1.NamespaceDefault || name == metav1.NamespaceSystem || name == metav1.NamespacePublic ||
		name == "kube-node-lease"
}

// plain reports whether an object has no labels and annotations but the server's.
func plain(o *unstructured.Unstructured) bool {
	for label := range o.GetLabels() {
		if label != nameLabel {
			return false
		}
	}
	return len(o.GetAnnotations()) == 0
}

func text(o *unstructured.Unstructured, path ...string) string {
	s, _, _ := unstructured.NestedString(o.Object, path...)
	return s
}

func is(o *unstructured.Unstructured, condition string) bool {
	conditions, _, _ := unstructured.NestedFieldNoCopy(o.Object, "status", "conditions")
	list, _ := conditions.([]any)
	for _, c := range list {
		if m, _ := c.(map[string]any); m["type"] == condition && m["status"] == "True" {
			return true
		}
	}
	return false
}
