package server

import (
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/coracle-dev/coracle/pkg/api/auditlog"
)

// transport returns the TLS version and cipher suites from the options. Zero and nil mean the defaults of crypto/tls.
func (p *process) transport() (minVersion uint16, ciphers []uint16, err error) {
	if p.TLSMinVersion != "" {
		if minVersion, err = cliflag.TLSVersion(p.TLSMinVersion); err != nil {
			return 0, nil, err
		}
	}
	if len(p.TLSCipherSuites) > 0 {
		ciphers, err = cliflag.TLSCipherSuites(p.TLSCipherSuites)
	}
	return minVersion, ciphers, err
}

// auditLog opens the audit log, or returns nil if it is disabled.
func (p *process) auditLog() (*auditlog.Log, error) {
	if p.AuditPolicyFile == "" {
		return nil, nil
	}
	return auditlog.Open(auditlog.Config{
		PolicyFile: p.AuditPolicyFile, Path: p.AuditLogPath, Format: p.AuditLogFormat,
		MaxAge: p.AuditLogMaxAge, MaxBackups: p.AuditLogMaxBackup, MaxSize: p.AuditLogMaxSize, Compress: p.AuditLogCompress,
		Webhook: auditlog.Webhook{Kubeconfig: p.AuditWebhookConfig, InitialBackoff: p.AuditWebhookInitialBackoff,
			BufferSize: p.AuditWebhookBufferSize, MaxBatch: p.AuditWebhookMaxBatch, MaxWait: p.AuditWebhookMaxWait},
		Logger: component(p.log, "audit"),
	})
}
