package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const defaultConfigFile = "/etc/coracle/config.yaml"

func commonFlags(f *pflag.FlagSet) {
	d := config.Default()
	f.String("config", "", "YAML file of options (default "+defaultConfigFile+" where it exists)")
	f.String("data-dir", d.DataDir, "directory of all state")
	f.String("run-dir", d.RunDir, "directory of state that need not survive a reboot")
	f.String("log-level", d.LogLevel, "debug, info, warn or error")
	f.String("log-format", d.LogFormat, "text, or json: one object per line")
}

// onMachine adds the options that all commands about this machine have, and has the command load the configuration and
// call f.
func onMachine(cmd *cobra.Command, f func(ctx context.Context, c config.Config, args []string) error) {
	commonFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := load(cmd)
		if err != nil {
			return err
		}
		return f(cmd.Context(), c, args)
	}
}

func serverFlags(f *pflag.FlagSet) {
	d := config.Default()
	f.String("listen", d.Listen, "address and port of the API")
	f.StringSlice("tls-names", nil, "further names and addresses of the API's certificate")
	f.String("cluster-cidr", d.ClusterCIDR, "addresses of pods, a /24 for each node")
	f.String("service-cidr", d.ServiceCIDR, "addresses of services")
	f.String("cluster-domain", d.ClusterDomain, "DNS suffix of services")
	f.Duration("node-monitor-grace-period", d.NodeMonitorGracePeriod,
		"how long a node may go without heartbeats before it is marked Unknown and its pods are evicted")
	f.Duration("task-node-timeout", d.TaskNodeTimeout,
		"how long a node may go without heartbeats before the attempts of tasks on it have failed")
	f.String("scheduler-config", "",
		"KubeSchedulerConfiguration file: profiles by schedulerName, weights of scores, and the scoring strategy of "+
			"resources")
	f.StringSlice("disable", nil, "components not to run in this process: controllers, scheduler, loadbalancer, ingress")
	f.Bool("allow-privileged", d.AllowPrivileged, "allow privileged containers")
	f.Bool("anonymous-auth", d.AnonymousAuth,
		"let requests without credentials pass as system:anonymous; kubeadm join needs it")
	f.String("store-quota", "",
		"maximum size of the store, such as 512Mi; above it creates and updates are rejected (default an eighth of the "+
			"memory, at most 8Gi)")
	f.Bool("secrets-encryption", false,
		"encrypt Secrets in the store with a key generated in the data directory; see coracle secrets-encrypt")
	f.String("rest-address", "",
		"address and port of the REST facade (tasks, pods, services and nodes as plain JSON); off by default")
	f.String("rest-token-file", "", "file with the bearer token of the REST facade; reloaded when it changes")
	f.Bool("rest-insecure", false, "serve the REST facade as plain HTTP without a token, on a loopback address only")
	f.StringSlice("rest-cors-origins", nil,
		"origins of web pages that may use the REST facade, such as https://example.com; * is all")
	f.StringSlice("load-balancer-pool", nil,
		"addresses for services of type LoadBalancer: CIDRs, or ranges such as 192.0.2.10-192.0.2.20 (default the nodes' "+
			"own addresses)")
	f.Int("ingress-http-port", d.IngressHTTPPort, "port of this node for HTTP of Ingresses; 0 for none")
	f.Int("ingress-https-port", d.IngressHTTPSPort, "port of this node for HTTPS of Ingresses; 0 for none")
	f.Bool("merge-kubeconfig", d.MergeKubeconfig, `write a context "coracle" to ~/.kube/config too`)
	apiFlags(f, &d.Server) // load decodes them by name
}

// apiFlags adds the options of the API server whose names and meaning are upstream's. Their defaults are those in c.
func apiFlags(f *pflag.FlagSet, c *config.Server) {
	f.StringVar(&c.NodePortRange, "service-node-port-range", c.NodePortRange,
		"ports of nodes for services of types NodePort and LoadBalancer")
	f.DurationVar(&c.EventTTL, "event-ttl", c.EventTTL, "how long events are retained after their last write")
	f.StringSliceVar(&c.EnableAdmissionPlugins, "enable-admission-plugins", nil,
		"admission plugins to enable in addition to the default ones, such as AlwaysPullImages")
	f.StringSliceVar(&c.DisableAdmissionPlugins, "disable-admission-plugins", nil,
		"default admission plugins to disable, such as DenyServiceExternalIPs or EventRateLimit")
	f.StringVar(&c.AdmissionConfig, "admission-control-config-file", "",
		"AdmissionConfiguration file: defaults of PodSecurity, limits of EventRateLimit, and so on")
	f.StringVar(&c.TLSMinVersion, "tls-min-version", "",
		"minimum TLS version of the API: VersionTLS12 (the default), VersionTLS13 ...")
	f.StringSliceVar(&c.TLSCipherSuites, "tls-cipher-suites", nil,
		"cipher suites of the API, by their IANA names; TLS 1.3 has its own (default Go's choice)")
	f.StringVar(&c.EncryptionConfig, "encryption-provider-config", "",
		"EncryptionConfiguration file: encryption of the store with your own keys; reloaded when it changes")
	f.IntVar(&c.MaxInflight, "max-requests-inflight", c.MaxInflight,
		"with --max-mutating-requests-inflight, the number of requests that execute at a time, which priority levels share")
	f.IntVar(&c.MaxMutatingInflight, "max-mutating-requests-inflight", c.MaxMutatingInflight,
		"see --max-requests-inflight")
	f.DurationVar(&c.RequestTimeout, "request-timeout", c.RequestTimeout,
		"maximum duration of requests other than watches and streams")
	f.IntVar(&c.MinRequestTimeout, "min-request-timeout", c.MinRequestTimeout,
		"seconds that a watch lasts at least, and half of what it lasts at most, unless the client says how long")
	f.Float64Var(&c.GoawayChance, "goaway-chance", 0,
		"fraction of requests, at most 0.02, after which an HTTP/2 client is asked to connect again, to another server "+
			"behind a load balancer")
	f.DurationVar(&c.ShutdownDelay, "shutdown-delay-duration", 0,
		"how long a server that is stopped still serves while /readyz fails, at most 1m")
	f.Int64Var(&c.NotReadySeconds, "default-not-ready-toleration-seconds", c.NotReadySeconds,
		"seconds that pods stay on a node that is not ready, unless they say how long")
	f.Int64Var(&c.UnreachableSeconds, "default-unreachable-toleration-seconds", c.UnreachableSeconds,
		"seconds that pods stay on a node that cannot be reached, unless they say how long")
	f.BoolVar(&c.Profiling, "profiling", c.Profiling, "serve Go's profiles at /debug/pprof/ of the API, to administrators")
	auditFlags(f, &c.Audit)
	accessFlags(f, &c.Access)
	accountFlags(f, &c.Accounts)
}

func auditFlags(f *pflag.FlagSet, c *config.Audit) {
	f.StringVar(&c.AuditPolicyFile, "audit-policy-file", "",
		"audit policy (audit.k8s.io/v1); with --audit-log-path or --audit-webhook-config-file")
	f.StringVar(&c.AuditLogPath, "audit-log-path", "", "file for audit events; - is standard output")
	f.StringVar(&c.AuditLogFormat, "audit-log-format", c.AuditLogFormat,
		"json, an object per line, or legacy, a line of text per event")
	f.IntVar(&c.AuditLogMaxAge, "audit-log-maxage", c.AuditLogMaxAge, "days to retain rotated audit logs; 0 means forever")
	f.IntVar(&c.AuditLogMaxBackup, "audit-log-maxbackup", c.AuditLogMaxBackup,
		"number of rotated audit logs to retain; 0 means all")
	f.IntVar(&c.AuditLogMaxSize, "audit-log-maxsize", c.AuditLogMaxSize,
		"size in MiB at which the audit log is rotated; 0 means 100")
	f.BoolVar(&c.AuditLogCompress, "audit-log-compress", false, "compress rotated audit logs with gzip")
	f.StringVar(&c.AuditWebhookConfig, "audit-webhook-config-file", "",
		"kubeconfig of a server that is sent audit events in batches; requests never wait for it")
	f.DurationVar(&c.AuditWebhookInitialBackoff, "audit-webhook-initial-backoff", c.AuditWebhookInitialBackoff,
		"how long after a failure a batch is sent again; it grows by half until the fifth attempt")
	f.IntVar(&c.AuditWebhookBufferSize, "audit-webhook-batch-buffer-size", c.AuditWebhookBufferSize,
		"maximum number of events that wait for the webhook, beside 32 MiB; further ones are dropped and counted")
	f.IntVar(&c.AuditWebhookMaxBatch, "audit-webhook-batch-max-size", c.AuditWebhookMaxBatch,
		"maximum number of events of a batch")
	f.DurationVar(&c.AuditWebhookMaxWait, "audit-webhook-batch-max-wait", c.AuditWebhookMaxWait,
		"how long a batch waits to be full")
}

func accessFlags(f *pflag.FlagSet, c *config.Access) {
	f.StringVar(&c.AuthenticationConfig, "authentication-config", "",
		"AuthenticationConfiguration file: OpenID providers, with claims mapped and checked by CEL, and anonymous access; "+
			"reloaded when it changes")
	f.StringVar(&c.AuthorizationConfig, "authorization-config", "",
		"AuthorizationConfiguration file: the chain of Node, RBAC and webhooks; reloaded when it changes")
	f.StringVar(&c.TokenWebhook, "authentication-token-webhook-config-file", "",
		"kubeconfig of a server that authenticates unknown tokens by TokenReviews")
	f.StringVar(&c.TokenWebhookVersion, "authentication-token-webhook-version", c.TokenWebhookVersion,
		"version of those TokenReviews: v1 or v1beta1")
	f.DurationVar(&c.TokenWebhookTTL, "authentication-token-webhook-cache-ttl", c.TokenWebhookTTL,
		"how long its answers are valid")
	f.StringVar(&c.OIDCIssuer, "oidc-issuer-url", "",
		"URL of an OpenID provider, https; --authentication-config has several, and more settings")
	f.StringVar(&c.OIDCClientID, "oidc-client-id", "", "audience of the provider's tokens")
	f.StringVar(&c.OIDCCAFile, "oidc-ca-file", "", "authorities of the provider's certificate (default the system's)")
	f.StringVar(&c.OIDCUsernameClaim, "oidc-username-claim", c.OIDCUsernameClaim, "claim that names the user")
	f.StringVar(&c.OIDCUsernamePrefix, "oidc-username-prefix", "",
		"prefix of user names; - for none (default the issuer's URL and #, unless the claim is email)")
	f.StringVar(&c.OIDCGroupsClaim, "oidc-groups-claim", "", "claim with the user's groups")
	f.StringVar(&c.OIDCGroupsPrefix, "oidc-groups-prefix", "", "prefix of groups")
	f.StringSliceVar(&c.OIDCSigningAlgs, "oidc-signing-algs", c.OIDCSigningAlgs,
		"algorithms with which tokens may be signed")
	f.StringSliceVar(&c.OIDCRequiredClaims, "oidc-required-claim", nil, "claim=value that tokens must have")
	f.StringVar(&c.RequestHeaderCA, "requestheader-client-ca-file", "",
		"authorities of an authenticating proxy, whose headers say who a user is; reloaded when it changes")
	f.StringSliceVar(&c.RequestHeaderNames, "requestheader-allowed-names", nil,
		"common names that the proxy's certificate may have (default any)")
	f.StringSliceVar(&c.RequestHeaderUsers, "requestheader-username-headers", c.RequestHeaderUsers,
		"its headers with the user's name")
	f.StringSliceVar(&c.RequestHeaderUIDs, "requestheader-uid-headers", c.RequestHeaderUIDs,
		"its headers with the user's UID")
	f.StringSliceVar(&c.RequestHeaderGroups, "requestheader-group-headers", c.RequestHeaderGroups,
		"its headers with the user's groups")
	f.StringSliceVar(&c.RequestHeaderPrefixes, "requestheader-extra-headers-prefix", c.RequestHeaderPrefixes,
		"prefixes of its headers with more about the user")
}

func accountFlags(f *pflag.FlagSet, c *config.Accounts) {
	f.StringSliceVar(&c.AccountIssuers, "service-account-issuer", nil,
		"issuer of service account tokens; further ones are accepted too (default "+
			"https://kubernetes.default.svc.CLUSTER-DOMAIN)")
	f.StringVar(&c.AccountJWKS, "service-account-jwks-uri", "",
		"URL of the keys of service account tokens in the discovery document, https (default /openid/v1/jwks of this server)")
	f.StringSliceVar(&c.APIAudiences, "api-audiences", nil,
		"audiences of tokens for the API (default the issuers of service account tokens)")
	f.StringVar(&c.AccountSigningKey, "service-account-signing-key-file", "",
		"file with the private key that signs service account tokens (default one of the data directory, see coracle certs)")
	f.StringSliceVar(&c.AccountKeys, "service-account-key-file", nil,
		"files with further keys, public or private, that verify service account tokens, such as former ones")
	f.DurationVar(&c.AccountMaxExpiration, "service-account-max-token-expiration", 0,
		"maximum lifetime of requested service account tokens, at least 1h; longer requests get that (default none)")
	f.BoolVar(&c.AccountExtendExpiration, "service-account-extend-token-expiration", c.AccountExtendExpiration,
		"accept tokens that kubelets request for pods for a year, for clients that never read them again")
}

func agentFlags(f *pflag.FlagSet) {
	d := config.Default()
	f.String("node-name", "", "name of the node (default the host's name)")
	f.String("node-ip", "", "address of the node (default the address of the default route)")
	f.StringSlice("node-labels", nil, "labels of the node, key=value")
	f.StringSlice("node-taints", nil, "taints of the node, key=value:Effect")
	f.Int("max-pods", d.MaxPods, "maximum number of pods on the node")
	f.String("pod-manifest-path", "",
		"folder with manifests of static pods, which run without an API server (default DATA-DIR/agent/pod-manifests)")
	f.Int64("pod-max-pids", d.PodMaxPIDs, "maximum number of processes and threads in a pod; -1 for no limit")
	f.Int64("user-namespaces-ids-per-pod", d.UserNamespaceIDs,
		"number of user and group IDs of a pod with hostUsers: false, a multiple of 65536; of those that /etc/subuid and "+
			"/etc/subgid give the user kubelet, or else of all from there on")
	f.StringSlice("kube-reserved", nil,
		"resources reserved for the system, such as memory=512Mi,cpu=100m,pid=1000 (default a 16th of the memory, between "+
			"128Mi and 512Mi, and 1024 process IDs)")
	f.Bool("pod-metadata-access", false,
		"allow pods to connect to link-local addresses such as 169.254.169.254, where clouds serve the machine's credentials")
	f.String("agent-listen", d.AgentListen, "address and port of the node's API (logs, exec)")
	f.String("containerd", "", "socket of a containerd on the host, instead of the embedded one")
	f.StringSlice("eviction-hard", nil,
		"eviction thresholds, such as nodefs.available<10%; signals not listed keep their defaults "+
			"(memory.available<100Mi, 5% of disks and inodes), 0% disables one")
	f.Duration("eviction-pressure-transition-period", d.EvictionTransition,
		"how long a pressure condition stays true after the pressure ended")
	f.Duration("shutdown-grace-period", d.ShutdownGracePeriod,
		"how long systemd-logind is asked to delay a shutdown of the machine until pods have ended; 0 disables it")
	f.Duration("shutdown-grace-period-critical-pods", d.ShutdownGracePeriodCriticalPods,
		"part of it that is kept for critical pods, which end last")
	f.StringSlice("shutdown-grace-period-by-pod-priority", nil,
		"priority=duration, such as 0=20s,1000000=10s, in place of these two: pods of the lowest priority end first")
	f.Int("image-gc-high-threshold", d.ImageGCHigh,
		"disk usage in percent at which unused images are removed; 100 disables it")
	f.Int("image-gc-low-threshold", d.ImageGCLow, "disk usage in percent down to which unused images are removed")
	f.String("image-credential-provider-config", "",
		"CredentialProviderConfig file, or folder of them: programs that are asked for registry credentials of images")
	f.String("image-credential-provider-bin-dir", "", "folder of these programs")
	f.StringSlice("allowed-unsafe-sysctls", nil,
		"unsafe sysctls of the network, IPC and user namespaces that pods may set, by name or prefix, such as net.core.*")
}

func joinFlags(f *pflag.FlagSet) {
	f.StringSlice("join", nil, "URL of a server: https://server:6443; several if there are more")
	f.String("token", "", "join token, needed the first time (see coracle token create); - reads it from standard input")
	f.String("token-file", "", "file containing the join token")
}

// load merges defaults, file, environment and flags, each overriding the one before, and validates the result.
func load(cmd *cobra.Command) (config.Config, error) {
	c := config.Default()
	path, required := cmd.Flag("config").Value.String(), true
	if path == "" {
		path = os.Getenv(variable("config"))
	}
	if path == "" {
		path, required = defaultConfigFile, false
	}
	values, err := readFile(path, required)
	if err != nil {
		return c, err
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		list, many := f.Value.(pflag.SliceValue)
		switch env := os.Getenv(variable(f.Name)); {
		case f.Changed && many:
			values[f.Name] = list.GetSlice()
		case f.Changed:
			values[f.Name] = f.Value.String()
		case env != "":
			values[f.Name] = env
		}
	})
	d, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		Result: &c, WeaklyTypedInput: true,
		DecodeHook: mapstructure.ComposeDecodeHookFunc(mapstructure.StringToTimeDurationHookFunc(),
			mapstructure.StringToSliceHookFunc(",")),
	})
	if err != nil {
		return c, err
	}
	if err := d.Decode(values); err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	return c, c.Validate()
}

// variable returns the environment variable of an option: CORACLE_LOG_LEVEL for log-level.
func variable(option string) string {
	return "CORACLE_" + strings.ToUpper(strings.ReplaceAll(option, "-", "_"))
}

// maxConfig is the maximum size of a configuration file, in bytes.
const maxConfig = 1 << 20

func readConfig(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := bounded.All(f, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// readFile reads the options in a YAML file, which may be missing unless it is required.
func readFile(path string, required bool) (map[string]any, error) {
	values := map[string]any{}
	data, err := readConfig(path)
	if errors.Is(err, fs.ErrNotExist) && !required {
		return values, nil
	}
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if err := yaml.Unmarshal(data, &values); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	known := options(reflect.TypeFor[config.Config]())
	for key := range values {
		if !slices.Contains(known, key) {
			return nil, fmt.Errorf("%s: unknown option %q; there are %s", path, key, strings.Join(known, ", "))
		}
	}
	if m, ok := values["eviction-hard"].(map[string]any); ok { // the kubelet's format
		values["eviction-hard"] = config.ThresholdEntries(m)
	}
	return values, nil
}

// options returns the sorted names of all options.
func options(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous {
			names = append(names, options(f.Type)...)
		} else {
			names = append(names, f.Tag.Get("mapstructure"))
		}
	}
	slices.Sort(names)
	return names
}
