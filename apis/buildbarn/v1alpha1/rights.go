package v1alpha1

import (
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/coracle-dev/coracle/apis/internal/common"
)

// rights returns the rules of a kind's reconciler, including further, and of the roles that are aggregated into
// edit (and so admin) and view.
func rights(plural string, further ...rbacv1.PolicyRule) (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	read := []string{"get", "list", "watch"}
	controller = append([]rbacv1.PolicyRule{
		common.Rule(group, plural, "get", "list", "watch", "update"), common.Rule(group, plural+"/status", "update"),
		common.Rule(group, plural+"/finalizers", "update"),
		common.Rule("", "events", "create", "patch", "update"),
	}, further...)
	edit = []rbacv1.PolicyRule{
		common.Rule(group, plural, "create", "delete", "deletecollection", "patch", "update"),
		common.Rule(group, plural+"/scale", "patch", "update"),
	}
	view = []rbacv1.PolicyRule{
		common.Rule(group, plural, read...), common.Rule(group, plural+"/status", "get"),
		common.Rule(group, plural+"/scale", "get"),
	}
	return controller, edit, view
}

var write = []string{"create", "delete", "get", "list", "update", "watch"}

// readNamed allows reading the objects that configurations refer to.
var readNamed = []rbacv1.PolicyRule{
	common.Rule("", "services", "get", "list", "watch"),
	common.Rule(GroupVersion.Group, "buildbarnstorages", "get", "list", "watch"),
}

// readWorkers is for parts that are deleted only after the workers of their farm.
var readWorkers = common.Rule(GroupVersion.Group, "buildbarnworkers", "get", "list", "watch")

func children(list ...rbacv1.PolicyRule) []rbacv1.PolicyRule {
	return append([]rbacv1.PolicyRule{
		common.Rule("", "configmaps", write...), common.Rule("", "pods", "get", "list", "watch"),
		common.Rule("", "secrets", "get", "list", "watch"),
		common.Rule("networking.k8s.io", "ingresses", write...),
	}, append(list, readNamed...)...)
}

// SchedulerRights returns the rules of the roles for schedulers.
func SchedulerRights() (controller, edit, view []rbacv1.PolicyRule) {
	return rights("buildbarnschedulers",
		children(readWorkers, common.Rule("apps", "deployments", write...), common.Rule("", "services", write...))...)
}

// WorkerRights returns the rules of the roles for workers.
func WorkerRights() (controller, edit, view []rbacv1.PolicyRule) {
	return rights("buildbarnworkers",
		children(common.Rule("apps", "deployments", write...), common.Rule("", "pods", "delete", "update"),
			common.Rule(GroupVersion.Group, "buildbarnschedulers", "get", "list", "watch"),
			common.Rule(GroupVersion.Group, "buildbarnfrontends", "get", "list", "watch"))...)
}

// StorageRights returns the rules of the roles for storage.
func StorageRights() (controller, edit, view []rbacv1.PolicyRule) {
	return rights("buildbarnstorages",
		children(readWorkers, common.Rule("apps", "statefulsets", write...), common.Rule("", "services", write...),
			common.Rule("", "persistentvolumeclaims", write...))...)
}

// FrontendRights returns the rules of the roles for frontends.
func FrontendRights() (controller, edit, view []rbacv1.PolicyRule) {
	return rights("buildbarnfrontends",
		children(common.Rule("apps", "deployments", write...), common.Rule("", "services", write...))...)
}

// BrowserRights returns the rules of the roles for browsers.
func BrowserRights() (controller, edit, view []rbacv1.PolicyRule) {
	return rights("buildbarnbrowsers",
		children(common.Rule("apps", "deployments", write...), common.Rule("", "services", write...))...)
}

// FarmRights returns the rules of the roles for farms.
func FarmRights() (controller, edit, view []rbacv1.PolicyRule) {
	further := []rbacv1.PolicyRule{common.Rule("", "configmaps", write...), common.Rule("", "secrets", write...)}
	for _, plural := range []string{
		"buildbarnschedulers", "buildbarnworkers", "buildbarnstorages", "buildbarnfrontends", "buildbarnbrowsers",
	} {
		further = append(further, common.Rule(GroupVersion.Group, plural, write...),
			common.Rule(GroupVersion.Group, plural+"/finalizers", "update"))
	}
	return rights("buildbarns", further...)
}
