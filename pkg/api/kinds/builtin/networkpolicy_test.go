package builtin

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/coracle-dev/coracle/pkg/kind"
)

type policySource struct{ asked []string }

func (s *policySource) WriteRules(_ context.Context, node, after string, write func([]byte)) error {
	s.asked = append(s.asked, node+"/"+after)
	write([]byte("rules"))
	return nil
}

type policyConnection struct {
	kind.Connection
	source kind.Policies
}

func (c policyConnection) Target() (*kind.Resource, string, string) {
	return Kinds().ByGVK(corev1.SchemeGroupVersion.WithKind("Node")), "", "n1"
}
func (c policyConnection) Policies() kind.Policies { return c.source }

// A node gets only its own rules. A malformed version is refused.
func TestNodesGetTheirOwnRulesAlone(t *testing.T) {
	source := &policySource{}
	ask := func(who user.Info, source kind.Policies, query string) (http.Handler, *http.Request, error) {
		req := httptest.NewRequest(http.MethodGet, "/api/v1/nodes/n1/networkpolicy"+query, nil)
		req = req.WithContext(request.WithUser(req.Context(), who))
		h, err := nodePolicies(req, policyConnection{source: source})
		return h, req, err
	}
	node := func(name string) user.Info {
		return &user.DefaultInfo{Name: "system:node:" + name, Groups: []string{user.NodesGroup}}
	}
	_, _, err := ask(node("n2"), source, "")
	require.True(t, apierrors.IsForbidden(err), err)
	_, _, err = ask(node("n1"), nil, "")
	require.True(t, apierrors.IsServiceUnavailable(err), err)
	_, _, err = ask(node("n1"), source, "?after=%00")
	require.True(t, apierrors.IsBadRequest(err), err)
	h, req, err := ask(node("n1"), source, "?after=v1")
	require.NoError(t, err)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	require.Equal(t, "rules", w.Body.String())
	require.Equal(t, []string{"n1/v1"}, source.asked)
}
