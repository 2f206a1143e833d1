package v1alpha1

import rbacv1 "k8s.io/api/rbac/v1"

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// rights returns the rules of a kind's roles: for its reconciler, with what it needs besides its own kind, and those aggregated into edit (and so
// admin) and view.
func rights(plural string, further ...rbacv1.PolicyRule) (controller, edit, view []rbacv1.PolicyRule) {
	group := GroupVersion.Group
	read := []string{"get", "list", "watch"}
	controller = append([]rbacv1.PolicyRule{
		rule(group, plural, "get", "list", "watch", "update"), rule(group, plural+"/status", "update"), rule(group, plural+"/finalizers", "update"),
		rule("", "events", "create", "patch", "update"),
	}, further...)
	edit = []rbacv1.PolicyRule{rule(group, plural, "create", "delete", "deletecollection", "patch", "update"), rule(group, plural+"/scale", "patch", "update")}
	view = []rbacv1.PolicyRule{rule(group, plural, read...), rule(group, plural+"/status", "get"), rule(group, plural+"/scale", "get")}
	return controller, edit, view
}

// write are the verbs for children.
var write = []string{"create", "delete", "get", "list", "update", "watch"}

// readWorkers is for parts that go after the workers.
var readWorkers = rule(GroupVersion.Group, "buildbarnworkers", "get", "list", "watch")

func children(list ...rbacv1.PolicyRule) []rbacv1.PolicyRule {
	return append([]rbacv1.PolicyRule{rule("", "configmaps", write...), rule("", "pods", "get", "list", "watch"), rule("", "secrets", "get", "list", "watch"),
		rule("networking.k8s.io", "ingresses", write...)}, list...)
}

// SchedulerRights and the following return the rules of the kinds' roles.
func SchedulerRights() (controller, edit, view []rbacv1.PolicyRule) {
	return rights("buildbarnschedulers", children(readWorkers, rule("apps", "deployments", write...), rule("", "services", write...))...)
}

// WorkerRights returns the rules of workers.
func WorkerRights() (controller, edit, view []rbacv1.PolicyRule) {
	return rights("buildbarnworkers", children(rule("apps", "deployments", write...), rule("", "pods", "delete", "update"))...)
}

// StorageRights returns the rules of storage.
func StorageRights() (controller, edit, view []rbacv1.PolicyRule) {
	return rights("buildbarnstorages", children(readWorkers, rule("apps", "statefulsets", write...), rule("", "services", write...), rule("", "persistentvolumeclaims", write...))...)
}

// FrontendRights returns the rules of frontends.
func FrontendRights() (controller, edit, view []rbacv1.PolicyRule) {
	return rights("buildbarnfrontends", children(rule("apps", "deployments", write...), rule("", "services", write...))...)
}

// BrowserRights returns the rules of browsers.
func BrowserRights() (controller, edit, view []rbacv1.PolicyRule) {
	return rights("buildbarnbrowsers", children(rule("apps", "deployments", write...), rule("", "services", write...))...)
}

// FarmRights returns the rules of farms.
func FarmRights() (controller, edit, view []rbacv1.PolicyRule) {
	further := []rbacv1.PolicyRule{rule("", "configmaps", write...), rule("", "secrets", write...)}
	for _, plural := range []string{"buildbarnschedulers", "buildbarnworkers", "buildbarnstorages", "buildbarnfrontends", "buildbarnbrowsers"} {
		further = append(further, rule(GroupVersion.Group, plural, write...), rule(GroupVersion.Group, plural+"/finalizers", "update"))
	}
	return rights("buildbarns", further...)
}
