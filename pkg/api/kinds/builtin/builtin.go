// Package builtin defines the rows of the kinds that a server starts with: Kubernetes' kinds, with upstream's
// strategies, defaults, conversions and columns, and Coracle's own. Its invariant: it contains only types and pure
// functions, and makes each row once.
package builtin

import (
	"net/http"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/coordination/lease"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/endpoint"
	"k8s.io/kubernetes/pkg/registry/core/event"
	"k8s.io/kubernetes/pkg/registry/core/limitrange"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/podtemplate"
	"k8s.io/kubernetes/pkg/registry/core/replicationcontroller"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"
	"k8s.io/kubernetes/pkg/registry/core/secret"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
	"k8s.io/kubernetes/pkg/registry/discovery/endpointslice"
	"k8s.io/kubernetes/pkg/registry/networking/ipaddress"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// mostRanges limits the number of ServiceCIDRs, because each node routes them all.
const mostRanges = 32

// Kinds returns the Table of a server without extensions. It is built on first use.
var Kinds = sync.OnceValue(func() *kind.Table { return Table() })

// Table returns a new Table of all kinds that a server starts with, including the kinds of extensions.
func Table(extensions ...own.Extension) *kind.Table {
	setGates()
	return kind.MustTable(extend(slices.Concat(
		core(),
		groups(),
		batch(),
		sets(),
		budgetRows(),
		autoscalerRows(),
		admission(),
		csiRows(),
		ingressRows(),
		nodeRows(),
		storage(),
		deviceRows(),
		podGroupRows(),
		migrationRows(),
		flowControlRows(),
		apiServiceRows(),
		certificateRows(),
		reviews(),
		[]*kind.Resource{componentStatuses()},
		usageRows(),
	), append([]own.Extension{ours()}, extensions...))...)
}

// Verbs are in upstream's order.
var (
	allVerbs     = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	noCollection = []string{"create", "delete", "get", "list", "patch", "update", "watch"}
	partVerbs    = []string{"get", "patch", "update"}
	createVerbs  = []string{"create"}
	streamVerbs  = []string{"create", "get"}
	proxyVerbs   = []string{"create", "delete", "get", "patch", "update"}
)

func core() []*kind.Resource {
	events := row[corev1.Event, corev1.EventList](gv("", "v1"), "events", "event", event.Strategy, eventFields)
	events.ShortNames, events.Expires = []string{"ev"}, true

	namespaces := namespaceRow()

	nodes := row[corev1.Node, corev1.NodeList](gv("", "v1"), "nodes", "node", node.Strategy, nodeFields)
	nodes.Namespaced, nodes.Keys, nodes.ShortNames = false, "minions", []string{"no"}
	nodes.Status = node.StatusStrategy
	nodes.Subresources = []kind.Subresource{
		stream("proxy", "NodeProxyOptions", proxyVerbs, proxyNode), policyRules(*nodes),
	}

	pods := podRow()

	services := row[corev1.Service, corev1.ServiceList](gv("", "v1"), "services", "service", service.Strategy,
		serviceFields)
	services.Keys, services.ShortNames, services.Categories = "services/specs", []string{"svc"}, []string{"all"}
	services.Status = service.StatusStrategy
	services.Subresources = []kind.Subresource{
		stream("proxy", "ServiceProxyOptions", proxyVerbs, proxyService),
	}

	endpoints := row[corev1.Endpoints, corev1.EndpointsList](gv("", "v1"), "endpoints", "endpoints", endpoint.Strategy,
		metaFields)
	endpoints.Keys, endpoints.ShortNames = "services/endpoints", []string{"ep"}

	configMaps := row[corev1.ConfigMap, corev1.ConfigMapList](gv("", "v1"), "configmaps", "configmap", configmap.Strategy,
		metaFields)
	configMaps.ShortNames = []string{"cm"}

	secrets := row[corev1.Secret, corev1.SecretList](gv("", "v1"), "secrets", "secret", secret.Strategy, secretFields)

	accounts := row[corev1.ServiceAccount, corev1.ServiceAccountList](gv("", "v1"), "serviceaccounts", "serviceaccount",
		serviceaccount.Strategy, metaFields)
	accounts.ShortNames = []string{"sa"}
	accounts.Subresources = []kind.Subresource{
		{Name: "token", GroupVersionKind: gv("authentication.k8s.io", "v1").WithKind("TokenRequest"),
			Verbs: createVerbs, New: func() runtime.Object { return &authenticationv1.TokenRequest{} }, Create: issueToken},
	}

	limits := row[corev1.LimitRange, corev1.LimitRangeList](gv("", "v1"), "limitranges", "limitrange", limitrange.Strategy,
		metaFields)
	limits.ShortNames, limits.Table = []string{"limits"}, namesOnly(limits.GR())

	quotas := row[corev1.ResourceQuota, corev1.ResourceQuotaList](gv("", "v1"), "resourcequotas", "resourcequota",
		resourcequota.Strategy, metaFields)
	quotas.ShortNames, quotas.Status = []string{"quota"}, resourcequota.StatusStrategy

	templates := row[corev1.PodTemplate, corev1.PodTemplateList](gv("", "v1"), "podtemplates", "podtemplate",
		podtemplate.Strategy, metaFields)

	controllers := row[corev1.ReplicationController, corev1.ReplicationControllerList](gv("", "v1"),
		"replicationcontrollers", "replicationcontroller", replicationcontroller.Strategy, controllerFields)
	controllers.Keys, controllers.ShortNames, controllers.Categories = "controllers", []string{"rc"}, []string{"all"}
	controllers.Status, controllers.Subresources = replicationcontroller.StatusStrategy, []kind.Subresource{
		printed(replicationControllerScale),
	}

	newer := row[eventsv1.Event, eventsv1.EventList](gv("events.k8s.io", "v1"), "events", "event", event.Strategy,
		newEventFields)
	newer.ShortNames, newer.Expires, newer.StoredAs = []string{"ev"}, true, events
	events.Also = []*kind.Resource{newer}

	for _, r := range []*kind.Resource{accounts, namespaces, pods, quotas, services, templates} {
		r.ReturnsDeleted = true
	}
	return []*kind.Resource{
		configMaps, endpoints, events, limits, namespaces, nodes, pods, templates, controllers, quotas, secrets, accounts,
		services, newer,
	}
}

func namespaceRow() *kind.Resource {
	namespaces := row[corev1.Namespace, corev1.NamespaceList](gv("", "v1"), "namespaces", "namespace", namespace.Strategy,
		namespaceFields)
	namespaces.Namespaced, namespaces.ShortNames, namespaces.Verbs = false, []string{"ns"}, noCollection
	namespaces.Status, namespaces.Permanent = namespace.StatusStrategy, permanentNamespace
	namespaces.Subresources = []kind.Subresource{
		{Name: "finalize", GroupVersionKind: namespaces.GroupVersionKind, Verbs: []string{"update"},
			New: func() runtime.Object { return &corev1.Namespace{} }, Update: namespace.FinalizeStrategy},
	}
	return namespaces
}

func podRow() *kind.Resource {
	pods := row[corev1.Pod, corev1.PodList](gv("", "v1"), "pods", "pod", pod.Strategy, podFields)
	pods.ShortNames, pods.Categories = []string{"po"}, []string{"all"}
	pods.Status = pod.StatusStrategy
	pods.Indexes = []kind.Index{
		{Field: "spec.nodeName", Value: func(o client.Object) string { return o.(*corev1.Pod).Spec.NodeName }},
	}
	newPod := func() runtime.Object { return &corev1.Pod{} }
	pods.Subresources = []kind.Subresource{
		stream("attach", "PodAttachOptions", streamVerbs, attachPod, http.MethodGet, http.MethodPost),
		{
			Name:             "binding",
			GroupVersionKind: gv("", "v1").WithKind("Binding"),
			Verbs:            createVerbs,
			New:              func() runtime.Object { return &corev1.Binding{} },
			Create:           bind,
		},
		{
			Name:             "ephemeralcontainers",
			GroupVersionKind: pods.GroupVersionKind,
			Verbs:            partVerbs,
			New:              newPod,
			Update:           pod.EphemeralContainersStrategy,
		},
		{
			Name:             "eviction",
			GroupVersionKind: gv("policy", "v1").WithKind("Eviction"),
			Verbs:            createVerbs,
			New:              func() runtime.Object { return &policyv1.Eviction{} },
			Create:           evict,
		},
		stream("exec", "PodExecOptions", streamVerbs, execPod, http.MethodGet, http.MethodPost),
		stream("log", "Pod", []string{"get"}, podLog, http.MethodGet),
		stream("portforward", "PodPortForwardOptions", streamVerbs, forwardPorts, http.MethodGet, http.MethodPost),
		stream("proxy", "PodProxyOptions", proxyVerbs, proxyPod),
		{Name: "resize", GroupVersionKind: pods.GroupVersionKind, Verbs: partVerbs, New: newPod, Update: pod.ResizeStrategy},
	}
	return pods
}

func groups() []*kind.Resource {
	deployments := row[appsv1.Deployment, appsv1.DeploymentList](gv("apps", "v1"), "deployments", "deployment",
		deployment.Strategy, metaFields)
	deployments.ShortNames, deployments.Categories = []string{"deploy"}, []string{"all"}
	deployments.Status, deployments.Subresources = deployment.StatusStrategy, []kind.Subresource{printed(deploymentScale)}

	replicaSets := row[appsv1.ReplicaSet, appsv1.ReplicaSetList](gv("apps", "v1"), "replicasets", "replicaset",
		replicaset.Strategy, metaFields)
	replicaSets.ShortNames, replicaSets.Categories = []string{"rs"}, []string{"all"}
	replicaSets.Status, replicaSets.Subresources = replicaset.StatusStrategy, []kind.Subresource{printed(replicaSetScale)}

	revisions := row[appsv1.ControllerRevision, appsv1.ControllerRevisionList](gv("apps", "v1"), "controllerrevisions",
		"controllerrevision", controllerrevision.Strategy, metaFields)

	leases := row[coordinationv1.Lease, coordinationv1.LeaseList](gv("coordination.k8s.io", "v1"), "leases", "lease",
		lease.Strategy, metaFields)

	slices := row[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList](gv("discovery.k8s.io", "v1"), "endpointslices",
		"endpointslice", endpointslice.Strategy, metaFields)

	addresses := row[networkingv1.IPAddress, networkingv1.IPAddressList](gv("networking.k8s.io", "v1"), "ipaddresses",
		"ipaddress", ipaddress.Strategy, metaFields)
	addresses.ShortNames, addresses.Table = []string{"ip"}, addressPrinter(addresses)
	ranges := row[networkingv1.ServiceCIDR, networkingv1.ServiceCIDRList](gv("networking.k8s.io", "v1"), "servicecidrs",
		"servicecidr", servicecidr.Strategy, metaFields)
	ranges.Status, ranges.Most = servicecidr.StatusStrategy, mostRanges

	rbac := gv("rbac.authorization.k8s.io", "v1")
	clusterBindings := row[rbacv1.ClusterRoleBinding, rbacv1.ClusterRoleBindingList](rbac, "clusterrolebindings",
		"clusterrolebinding", clusterrolebinding.Strategy, metaFields)
	clusterBindings.Namespaced = false
	clusterRoles := row[rbacv1.ClusterRole, rbacv1.ClusterRoleList](rbac, "clusterroles", "clusterrole",
		clusterrole.Strategy, metaFields)
	clusterRoles.Namespaced, clusterRoles.Table = false, namesOnly(clusterRoles.GR())
	bindings := row[rbacv1.RoleBinding, rbacv1.RoleBindingList](rbac, "rolebindings", "rolebinding", rolebinding.Strategy,
		metaFields)
	roles := row[rbacv1.Role, rbacv1.RoleList](rbac, "roles", "role", role.Strategy, metaFields)
	roles.Table = namesOnly(roles.GR())

	priorities := row[schedulingv1.PriorityClass, schedulingv1.PriorityClassList](gv("scheduling.k8s.io", "v1"),
		"priorityclasses", "priorityclass", priorityclass.Strategy, metaFields)
	priorities.Namespaced, priorities.ShortNames, priorities.Permanent = false, []string{"pc"}, permanentPriority

	return []*kind.Resource{
		revisions, deployments, replicaSets, leases, slices, addresses, ranges, clusterBindings, clusterRoles, bindings,
		roles, priorities,
	}
}

func gv(group, version string) schema.GroupVersion {
	return schema.GroupVersion{Group: group, Version: version}
}

// stream returns a byte-stream subresource. options is the kind of its query options. No methods means all.
func stream(name, options string, verbs []string, connect kind.Connector, methods ...string) kind.Subresource {
	return kind.Subresource{
		Name:             name,
		GroupVersionKind: gv("", "v1").WithKind(options),
		Verbs:            verbs,
		Connect:          connect,
		Methods:          methods,
	}
}
