package own

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Extension adds a system's kinds to the kinds that a server starts with.
type Extension struct {
	Kinds []Kind
	// Subresources are added to kinds that are defined elsewhere.
	Subresources map[schema.GroupVersionKind][]kind.Subresource
	// Roles are further roles and bindings, besides accounts and the rules that follow from Kind.View and Kind.Edit.
	Roles []client.Object
}

// Account is the service account of a reconciler, with the rules that it needs: Further only in Coracle itself.
type Account struct {
	Name           string
	Rules, Further []rbacv1.PolicyRule
}

// Kind is one of Coracle's own kinds.
type Kind struct {
	Row *kind.Resource
	// View, Edit and Schema are as in Definition.
	View, Edit bool
	Schema     func(*Schema)
	// Columns are the columns of kubectl get on API servers where the kind is a custom resource.
	Columns []apiextensionsv1.CustomResourceColumnDefinition
}

// Resources returns the names and scopes of kinds in discovery's form.
func Resources(kinds []Kind) []metav1.APIResource {
	list := make([]metav1.APIResource, len(kinds))
	for i, k := range kinds {
		r := k.Row
		list[i] = metav1.APIResource{
			Group: r.GroupVersionKind.Group, Version: r.GroupVersionKind.Version, Kind: r.GroupVersionKind.Kind,
			Name: r.Plural, SingularName: r.Singular, ShortNames: r.ShortNames, Namespaced: r.Namespaced,
		}
	}
	return list
}

// Scale returns the scale subresource of a kind. fields returns pointers to, and values of, the underlying fields.
// Its table has upstream's columns once the kind is part of a server's Table.
func Scale[P client.Object](fields func(P) (want **int32, have int32,
	selector *metav1.LabelSelector)) kind.Subresource {
	return kind.Subresource{
		Name: "scale", GroupVersionKind: autoscalingv1.SchemeGroupVersion.WithKind("Scale"),
		Verbs: []string{"get", "patch", "update"},
		New:   func() runtime.Object { return &autoscalingv1.Scale{} },
		Scale: &kind.Scale{
			Get: func(o client.Object) (*int32, int32, *metav1.LabelSelector) {
				want, have, selector := fields(o.(P))
				return *want, have, selector
			},
			Set: func(o client.Object, n int32) {
				want, _, _ := fields(o.(P))
				*want = &n
			},
		},
	}
}

// ControllerBinding binds a role to a service account in kube-system, whose identity a reconciler uses.
func ControllerBinding(role *rbacv1.ClusterRole, account string) client.Object {
	return RoleBinding(role, rbacv1.Subject{
		Kind:      rbacv1.ServiceAccountKind,
		Namespace: metav1.NamespaceSystem,
		Name:      account,
	})
}

// RoleBinding binds a role to a subject. The binding has the role's name.
func RoleBinding(role *rbacv1.ClusterRole, subject rbacv1.Subject) client.Object {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: RoleMeta(role.Name),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{subject},
	}
}

// RoleMeta returns the metadata of a default role or binding. The server resets such objects unless their
// auto-update annotation is false.
func RoleMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"}}
}
