package v1alpha1

import (
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
		"tls-min-version \"TLS1.2\" is not one of VersionTLS10": func(c *Config) { c.TLSMinVersion = "TLS1.2" },
		"Cipher suite NONE not supported":                       func(c *Config) { c.TLSCipherSuites = []string{"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "NONE"} },
		"audit-policy-file and audit-log-path go together":      func(c *Config) { c.AuditLogPath = "/var/log/audit.log" },
		"audit-log-maxsize -1":                                  func(c *Config) { c.AuditLogMaxSize = -1 },
		"disable \"etcd\" is not one of controllers, scheduler": func(c *Config) { c.Disable = []string{"scheduler", "etcd"} },
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
