package v1alpha1

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDefaultIsValid(t *testing.T) {
	require.NoError(t, Default().Validate())
}

func TestValidateNamesTheOption(t *testing.T) {
	for want, spoil := range map[string]func(*Config){
		"data-dir":                  func(c *Config) { c.DataDir = "relative" },
		"run-dir":                   func(c *Config) { c.RunDir = "/" },
		"lies within data-dir":      func(c *Config) { c.RunDir = c.DataDir + "/run" },
		"log-level":                 func(c *Config) { c.LogLevel = "loud" },
		"log-format":                func(c *Config) { c.LogFormat = "xml" },
		"listen":                    func(c *Config) { c.Listen = "6443" },
		"is not an IP address":      func(c *Config) { c.Listen = "home:6443" },
		"cluster-cidr":              func(c *Config) { c.ClusterCIDR = "10.42.0.0" },
		"you may mean 10.43.0.0/16": func(c *Config) { c.ServiceCIDR = "10.43.1.0/16" },
		"overlap":                   func(c *Config) { c.ServiceCIDR = "10.42.128.0/24" },
		"cluster-domain":            func(c *Config) { c.ClusterDomain = "Cluster_Local" },
		"node-monitor-grace-period": func(c *Config) { c.NodeMonitorGracePeriod = 10 * time.Second },
		"tls-min-version \"TLS1.2\" is not one of VersionTLS10": func(c *Config) {
			c.TLSMinVersion = "TLS1.2"
		},
		"Cipher suite NONE not supported": func(c *Config) {
			c.TLSCipherSuites = []string{"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "NONE"}
		},
		"audit-policy-file and audit-log-path or audit-webhook-config-file go together": func(c *Config) {
			c.AuditLogPath = "/var/log/audit.log"
		},
		`audit-log-path "audit.log" must be an absolute path`: func(c *Config) {
			c.AuditPolicyFile, c.AuditLogPath = "/policy.yaml", "audit.log"
		},
		`audit-policy-file "policy.yaml" must be an absolute path`: func(c *Config) {
			c.AuditPolicyFile, c.AuditLogPath = "policy.yaml", StandardOutput
		},
		"audit-log-maxsize -1 is not within": func(c *Config) {
			c.AuditLogMaxSize = -1
		},
		"audit-webhook-batch-max-size 0 is not within 1 to 10000": func(c *Config) {
			c.AuditWebhookMaxBatch = 0
		},
		"audit-webhook-batch-max-wait 0s is not within": func(c *Config) {
			c.AuditWebhookMaxWait = 0
		},
		"audit-log-format \"text\" is not one of json, legacy": func(c *Config) {
			c.AuditLogFormat = "text"
		},
		"disable \"etcd\" is not one of controllers, scheduler": func(c *Config) {
			c.Disable = []string{"scheduler", "etcd"}
		},
		`service-account-issuer "https://a" is already specified`: func(c *Config) {
			c.AccountIssuers = []string{"https://a", "https://a"}
		},
		"service-account-issuer should not be an empty string": func(c *Config) {
			c.AccountIssuers = []string{""}
		},
		"service-account-jwks-uri requires https scheme": func(c *Config) {
			c.AccountJWKS = "http://a"
		},
		"api-audiences should not contain an empty string": func(c *Config) {
			c.APIAudiences = []string{""}
		},
		"the service-account-max-token-expiration must be between": func(c *Config) {
			c.AccountMaxExpiration = time.Minute
		},
		`service-account-key-file "sa.pub" must be an absolute path`: func(c *Config) {
			c.AccountKeys = []string{"/sa.pub", "sa.pub"}
		},
		`service-account-signing-key-file "sa" must be an absolute path`: func(c *Config) {
			c.AccountSigningKey = "sa"
		},
		`service-node-port-range "30000-99999" is not a range of ports`: func(c *Config) {
			c.NodePortRange = "30000-99999"
		},
		`service-node-port-range "0-10" is not within 1-65535`: func(c *Config) {
			c.NodePortRange = "0-10"
		},
		"event-ttl 1s is not within 10s to": func(c *Config) {
			c.EventTTL = time.Second
		},
		"max-requests-inflight -1 is not within": func(c *Config) {
			c.MaxInflight = -1
		},
		"no request could execute": func(c *Config) {
			c.MaxInflight, c.MaxMutatingInflight = 0, 0
		},
		"request-timeout 0s is not within 1s to": func(c *Config) {
			c.RequestTimeout = 0
		},
		"min-request-timeout 0 is not within": func(c *Config) {
			c.MinRequestTimeout = 0
		},
		"goaway-chance 0.5 can not be": func(c *Config) {
			c.GoawayChance = 0.5
		},
		"goaway-chance NaN can not be": func(c *Config) {
			c.GoawayChance = math.NaN()
		},
		"shutdown-delay-duration 1h0m0s is not within": func(c *Config) {
			c.ShutdownDelay = time.Hour
		},
		"default-not-ready-toleration-seconds -1 is negative": func(c *Config) {
			c.NotReadySeconds = -1
		},
		"node-name":    func(c *Config) { c.NodeName = "My Laptop" },
		"node-ip":      func(c *Config) { c.NodeIP = "localhost" },
		"node-labels":  func(c *Config) { c.NodeLabels = []string{"disk"} },
		"node-taints":  func(c *Config) { c.NodeTaints = []string{"a=b:Never"} },
		"max-pods":     func(c *Config) { c.MaxPods = 0 },
		"agent-listen": func(c *Config) { c.AgentListen = ":99999" },
		"join":         func(c *Config) { c.Join = []string{"https://server:6443", "server:6443"} },
	} {
		c := Default()
		spoil(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
}
