// Package system describes a system: what one vertical slice adds to the cluster. pkg/systems lists the systems, and
// the server assembles them; no other part of the cluster knows their names.
//
// Its invariant: a System is complete when it is made, and is not changed afterwards.
package system

import (
	"context"
	"io/fs"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/node/part"
)

// System is one vertical slice.
type System struct {
	Name string
	// Extension has its kinds, its subresources of other kinds, and its roles.
	own.Extension
	// Reconcilers returns its reconcilers, made anew for each term of leadership. Nil: it has none.
	Reconcilers func(Controllers) []*engine.Reconciler
	// Node makes its part of an agent. Nil: it has none.
	Node func(part.Host) part.Part
	// Operator runs its reconcilers on another API server. Nil: it has none.
	Operator *Operator
	// Commands are its commands below `coracle`, AgentCommands below `coracle agent`.
	Commands, AgentCommands []*cobra.Command
	// Manual has its pages, as pkg/cli/manual reads them. Nil: it has none.
	Manual fs.FS
}

// Operator describes the process that runs a system's reconcilers on any Kubernetes.
type Operator struct {
	Short string
	// Reconcilers are the names of the ones that it runs.
	Reconcilers []string
	// Listen is the default address of its health and metrics.
	Listen string
	// Definitions are the system's kinds as CustomResourceDefinitions.
	Definitions func() []*apiextensionsv1.CustomResourceDefinition
	// Rights are what its reconcilers need on the API server.
	Rights func() []rbacv1.PolicyRule
	// Advice is what an administrator may want to add to Rights: lines of YAML comments.
	Advice string
	// Sources: objects name Secrets and ConfigMaps that it reads, and this can be limited to some namespaces.
	Sources bool
}

// Host is what the process gives a system when it makes it. The zero value is for uses without a server, such as
// printing definitions; what needs a field that is nil answers that this server cannot do it.
type Host struct {
	// Seal returns a code for data that only this cluster's API servers can compute (HMAC-SHA-256).
	Seal func(data []byte) []byte
}

// Controllers is what the process gives the reconcilers.
type Controllers struct {
	// ClientFor returns the client for an identity, such as "system:serviceaccount:kube-system:task-controller".
	ClientFor func(identity string) client.Interface
	// Connect returns the base URL of a node's API and a transport that authenticates to it. Nil: nodes cannot be reached.
	Connect func(ctx context.Context, node string) (*url.URL, http.RoundTripper, error)
	// ServerVersion is the version of the API server; empty: that of this build.
	ServerVersion string
	// TaskPatience is the time without a heartbeat after which a node's tasks have failed; 0 is the default.
	TaskPatience time.Duration
	// SourceNamespaces limit the namespaces in which reconcilers read the Secrets and ConfigMaps that objects name; empty:
	// all.
	SourceNamespaces []string
}
