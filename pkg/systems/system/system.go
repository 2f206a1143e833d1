// Package system describes a system: the additions of one vertical slice to the cluster. pkg/systems lists the systems,
// and the server assembles them; other parts of the cluster do not know their names. Its invariant: a System is
// complete when it is made, and does not change afterwards.
package system

import (
	"context"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/node/ingress"
	"github.com/coracle-dev/coracle/pkg/node/part"
)

// System is one vertical slice: kinds, reconcilers, node part, commands and manual.
type System struct {
	Name string
	// Extension holds its kinds, its subresources of other kinds, and its roles.
	own.Extension
	// Reconcilers returns new reconcilers for each term of leadership. It may be nil.
	Reconcilers func(Controllers) []*engine.Reconciler
	// Serve makes its component of an API server, which runs before requests arrive. It may be nil.
	Serve func(Server) run.Component
	// Backends are its kinds that Ingresses may name as backends.
	Backends []ingress.Resource
	// Node makes its part of an agent. It may be nil.
	Node func(part.Host) part.Part
	// Operator runs its reconcilers on another API server, where its kinds are custom resources. It may be nil.
	Operator *Operator
	// Commands are its commands below `coracle`, AgentCommands below `coracle agent`.
	Commands, AgentCommands []*cobra.Command
	// Manual holds its pages, in the form of pkg/cli/manual. It may be nil.
	Manual fs.FS
}

// Operator describes the process that runs a system's reconcilers on any Kubernetes.
type Operator struct {
	Short string
	// Listen is the default address for health and metrics.
	Listen string
	// Advice suggests rules that an administrator may add to the rights of the reconcilers, as lines of YAML comments.
	Advice string
	// Sources means that the operator reads the Secrets and ConfigMaps that objects name, which can be limited to some
	// namespaces.
	Sources bool
}

// Server holds what an API server offers a system's component.
type Server struct {
	// Name is the name of the machine.
	Name string
	// Dir is the server's data directory; empty if it has none that lasts.
	Dir string
	// Client has all permissions.
	Client client.Interface
	// Connect returns the base URL of a node's API and a transport that authenticates to it.
	Connect func(ctx context.Context, node string) (*url.URL, http.RoundTripper, error)
	// Alone reports whether no other server can use the store.
	Alone func() bool
	// NATSContext is the path of a file of `nats context save`, MessageTracing of a TracingConfiguration; empty if there
	// is none.
	NATSContext, MessageTracing string
	Metrics                     prometheus.Registerer
	Log                         *slog.Logger
}

// Controllers holds the clients and settings for the reconcilers.
type Controllers struct {
	// ClientFor returns the client for an identity, such as "system:serviceaccount:kube-system:task-controller".
	ClientFor func(identity string) client.Interface
	// Connect returns the base URL of a node's API and a transport that authenticates to it. It is nil if there is no
	// way to reach nodes.
	Connect func(ctx context.Context, node string) (*url.URL, http.RoundTripper, error)
	// ServerVersion is the version of the API server; empty means the version of this build.
	ServerVersion string
	// TaskPatience is the time without a heartbeat after which a node's tasks fail; 0 means the default.
	TaskPatience time.Duration
	// SourceNamespaces are the namespaces where reconcilers may read the Secrets and ConfigMaps that objects name;
	// empty means all.
	SourceNamespaces []string
}
