package v1alpha1

import (
	"time"

	"github.com/spf13/pflag"
)

func (c *Server) options(f *pflag.FlagSet) {
	f.StringVar(&c.Listen, "listen", ":6443", "address and port of the API")
	f.StringSliceVar(&c.TLSNames, "tls-names", nil, "further names and addresses of the API's certificate")
	f.StringVar(&c.ClusterCIDR, "cluster-cidr", "10.42.0.0/16", "addresses of pods, a /24 for each node")
	f.StringVar(&c.ServiceCIDR, "service-cidr", "10.43.0.0/16", "addresses of services")
	c.nodePortOption(f)
	f.StringVar(&c.ClusterDomain, "cluster-domain", "cluster.local", "DNS suffix of services")
	f.BoolVar(&c.AllowPrivileged, "allow-privileged", true, "allow privileged containers")
	f.StringVar(&c.StoreQuota, "store-quota", "",
		"maximum size of the store, such as 512Mi; above it the store refuses creates and updates (default an eighth of the "+
			"memory, at most 8Gi)")
	f.StringVar(&c.NATSContext, "nats-context", "",
		"file of nats context save: the NATS servers for the messages of workers with delivery.store: NATS")
	f.StringVar(&c.MessageTracing, "message-tracing-config", "",
		"TracingConfiguration file: the OpenTelemetry collector that gets a trace span for each message to a worker")
	f.BoolVar(&c.MergeKubeconfig, "merge-kubeconfig", true, `write a context "coracle" to ~/.kube/config too`)
	f.StringSliceVar(&c.Disable, "disable", nil,
		"components not to run in this process: controllers, scheduler, loadbalancer, ingress")
}

func (c *Server) nodePortOption(f *pflag.FlagSet) {
	f.StringVar(&c.NodePortRange, "service-node-port-range", "30000-32767",
		"ports of nodes for services of types NodePort and LoadBalancer")
}

func (c *Server) failureOptions(f *pflag.FlagSet) {
	f.StringVar(&c.SchedulerConfig, "scheduler-config", "",
		"KubeSchedulerConfiguration file: profiles by schedulerName, weights of scores, and the scoring strategy of "+
			"resources")
	f.DurationVar(&c.NodeMonitorGracePeriod, "node-monitor-grace-period", 40*time.Second,
		"how long a node may go without heartbeats before it is marked Unknown and its pods are evicted")
	f.DurationVar(&c.TaskNodeTimeout, "task-node-timeout", 30*time.Second,
		"how long a node may go without heartbeats before the attempts of tasks on it fail")
}

func (c *Server) apiOptions(f *pflag.FlagSet) {
	f.DurationVar(&c.EventTTL, "event-ttl", time.Hour, "how long events are retained after their last write")
	f.StringSliceVar(&c.EnableAdmissionPlugins, "enable-admission-plugins", nil,
		"admission plugins to enable in addition to the default ones, such as AlwaysPullImages")
	f.StringSliceVar(&c.DisableAdmissionPlugins, "disable-admission-plugins", nil,
		"default admission plugins to disable, such as DenyServiceExternalIPs or EventRateLimit")
	f.StringVar(&c.AdmissionConfig, "admission-control-config-file", "",
		"AdmissionConfiguration file: defaults of PodSecurity, limits of EventRateLimit, and so on")
	f.StringVar(&c.TLSMinVersion, "tls-min-version", "",
		"minimum TLS version of the API: VersionTLS12 (the default), VersionTLS13 ...")
	f.StringSliceVar(&c.TLSCipherSuites, "tls-cipher-suites", nil,
		"cipher suites of the API before TLS 1.3, by their IANA names (default Go's choice)")
	f.BoolVar(&c.Profiling, "profiling", true, "serve Go's profiles at /debug/pprof/ of the API, to administrators")
}
