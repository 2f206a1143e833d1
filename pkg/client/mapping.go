package client

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
)

// Kind is what a RESTMapper knows about one kind.
type Kind struct {
	schema.GroupVersionKind
	Plural     string
	Namespaced bool
	Singular   string // the kind in lower case if empty
}

// Kinds lists the kinds that every Coracle server has from its start, as pkg/kind/builtin declares them. A client maps these
// without asking a server; all others it discovers.
func Kinds() []Kind {
	core, apps := schema.GroupVersion{Version: "v1"}, schema.GroupVersion{Group: "apps", Version: "v1"}
	batch, rbac := schema.GroupVersion{Group: "batch", Version: "v1"}, schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	v1 := func(group string) schema.GroupVersion { return schema.GroupVersion{Group: group, Version: "v1"} }
	return []Kind{
		{core.WithKind("ConfigMap"), "configmaps", true, ""},
		{core.WithKind("Endpoints"), "endpoints", true, ""},
		{core.WithKind("Event"), "events", true, ""},
		{core.WithKind("LimitRange"), "limitranges", true, ""},
		{core.WithKind("Namespace"), "namespaces", false, ""},
		{core.WithKind("Node"), "nodes", false, ""},
		{core.WithKind("PersistentVolume"), "persistentvolumes", false, ""},
		{core.WithKind("PersistentVolumeClaim"), "persistentvolumeclaims", true, ""},
		{core.WithKind("Pod"), "pods", true, ""},
		{core.WithKind("PodTemplate"), "podtemplates", true, ""},
		{core.WithKind("ReplicationController"), "replicationcontrollers", true, ""},
		{core.WithKind("ResourceQuota"), "resourcequotas", true, ""},
		{core.WithKind("Secret"), "secrets", true, ""},
		{core.WithKind("Service"), "services", true, ""},
		{core.WithKind("ServiceAccount"), "serviceaccounts", true, ""},
		{apps.WithKind("ControllerRevision"), "controllerrevisions", true, ""},
		{apps.WithKind("DaemonSet"), "daemonsets", true, ""},
		{apps.WithKind("Deployment"), "deployments", true, ""},
		{apps.WithKind("ReplicaSet"), "replicasets", true, ""},
		{apps.WithKind("StatefulSet"), "statefulsets", true, ""},
		{batch.WithKind("CronJob"), "cronjobs", true, ""},
		{batch.WithKind("Job"), "jobs", true, ""},
		{v1("coordination.k8s.io").WithKind("Lease"), "leases", true, ""},
		{v1("discovery.k8s.io").WithKind("EndpointSlice"), "endpointslices", true, ""},
		{v1("events.k8s.io").WithKind("Event"), "events", true, ""},
		{v1("networking.k8s.io").WithKind("Ingress"), "ingresses", true, ""},
		{v1("networking.k8s.io").WithKind("IPAddress"), "ipaddresses", false, ""},
		{v1("networking.k8s.io").WithKind("ServiceCIDR"), "servicecidrs", false, ""},
		{rbac.WithKind("ClusterRole"), "clusterroles", false, ""},
		{rbac.WithKind("ClusterRoleBinding"), "clusterrolebindings", false, ""},
		{rbac.WithKind("Role"), "roles", true, ""},
		{rbac.WithKind("RoleBinding"), "rolebindings", true, ""},
		{v1("scheduling.k8s.io").WithKind("PriorityClass"), "priorityclasses", false, ""},
		{tasks.GroupVersion.WithKind("Task"), "tasks", true, ""},
	}
}

// Mapper maps between kinds and resources without asking a server.
func Mapper(kinds []Kind) meta.RESTMapper {
	var versions []schema.GroupVersion
	for _, k := range kinds {
		if v := k.GroupVersion(); !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
	}
	m := meta.NewDefaultRESTMapper(versions)
	for _, k := range kinds {
		scope := meta.RESTScopeRoot
		if k.Namespaced {
			scope = meta.RESTScopeNamespace
		}
		if k.Singular == "" {
			k.Singular = strings.ToLower(k.Kind)
		}
		m.AddSpecific(k.GroupVersionKind, k.GroupVersion().WithResource(k.Plural), k.GroupVersion().WithResource(k.Singular), scope)
	}
	return m
}
