package builtin

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
)

// policyRow returns the row of NetworkPolicy. pkg/node/netpolicy enforces the policies.
func policyRow() *kind.Resource {
	r := row[networkingv1.NetworkPolicy, networkingv1.NetworkPolicyList](gv("networking.k8s.io", "v1"), "networkpolicies",
		"networkpolicy", networkpolicy.Strategy, metaFields)
	r.ShortNames = []string{"netpol"}
	return r
}

// policyRules returns the subresource of nodes that serves their network policy rules.
func policyRules(parent kind.Resource) kind.Subresource {
	return kind.Subresource{
		Name:             "networkpolicy",
		GroupVersionKind: parent.GroupVersionKind,
		Verbs:            []string{"get"},
		Connect:          nodePolicies,
		Methods:          []string{http.MethodGet},
		Undocumented:     true,
	}
}

// holdRules is how long a request waits for changed rules before the response is 204. Nodes wait longer.
const holdRules = 2 * time.Minute

// writeRules is how long a node may take to read its rules (at most 48 MiB). Other nodes may be waiting for that
// memory.
const writeRules = 30 * time.Second

// nodePolicies returns a handler that sends the rules of the request's node as soon as their version differs from
// the query parameter "after", or 204 after holdRules.
func nodePolicies(req *http.Request, on kind.Connection) (http.Handler, error) {
	r, _, name := on.Target()
	who, _ := request.UserFrom(req.Context())
	if who == nil || slices.Contains(who.GetGroups(), user.NodesGroup) && who.GetName() != "system:node:"+name {
		return nil, apierrors.NewForbidden(r.GR(), name, errors.New("a node can get its own network policy rules only"))
	}
	policies := on.Policies()
	if policies == nil {
		return nil, apierrors.NewServiceUnavailable("this server does not resolve network policies")
	}
	after := req.URL.Query().Get("after")
	if len(after) > 64 || strings.ContainsFunc(after, func(r rune) bool { return r < ' ' || r > '~' }) {
		return nil, apierrors.NewBadRequest("after is not a version of rules")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithTimeout(req.Context(), holdRules)
		defer cancel()
		err := policies.WriteRules(ctx, name, after, func(rules []byte) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeRules))
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(rules)
		})
		switch {
		case err == nil:
		case ctx.Err() != nil:
			w.WriteHeader(http.StatusNoContent)
		default:
			on.Fail(w, req, err)
		}
	}), nil
}

// policyRoles returns the role and binding that let nodes get their rules.
func policyRoles() []client.Object {
	role := &rbacv1.ClusterRole{
		ObjectMeta: own.RoleMeta("system:coracle:node-network-policies"), Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"nodes/networkpolicy"}, Verbs: []string{"get"}},
		},
	}
	return []client.Object{
		role,
		own.RoleBinding(role, rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: user.NodesGroup}),
	}
}
