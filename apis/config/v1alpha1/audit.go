package v1alpha1

import (
	"errors"
	"fmt"
	"time"
)

// Audit configures the audit of the API, which is disabled without AuditLogPath and AuditWebhookConfig. Names and
// meaning are upstream's.
type Audit struct {
	// AuditPolicyFile is the absolute path of an audit.k8s.io/v1 Policy. Log and webhook require it, and it requires one
	// of them.
	AuditPolicyFile string `mapstructure:"audit-policy-file"`
	// AuditLogPath is the absolute path of the file to write, or StandardOutput; AuditLogFormat is json, an object per
	// line, or legacy.
	AuditLogPath   string `mapstructure:"audit-log-path"`
	AuditLogFormat string `mapstructure:"audit-log-format"`
	// AuditLogMaxAge is the age in days, and AuditLogMaxBackup the number, of rotated files to retain; 0 retains all.
	AuditLogMaxAge    int `mapstructure:"audit-log-maxage"`
	AuditLogMaxBackup int `mapstructure:"audit-log-maxbackup"`
	// AuditLogMaxSize is the size in MiB at which the file is rotated; 0 means 100. AuditLogCompress compresses rotated
	// files.
	AuditLogMaxSize  int  `mapstructure:"audit-log-maxsize"`
	AuditLogCompress bool `mapstructure:"audit-log-compress"`
	// AuditWebhookConfig is the absolute path of a kubeconfig for a server that is sent events.
	AuditWebhookConfig string `mapstructure:"audit-webhook-config-file"`
	// AuditWebhookInitialBackoff is how long after a failure they are sent again; it grows by half until the fifth
	// attempt.
	AuditWebhookInitialBackoff time.Duration `mapstructure:"audit-webhook-initial-backoff"`
	// AuditWebhookBufferSize limits the events that wait, AuditWebhookMaxBatch those of a request, and AuditWebhookMaxWait
	// how long one waits for more.
	AuditWebhookBufferSize int           `mapstructure:"audit-webhook-batch-buffer-size"`
	AuditWebhookMaxBatch   int           `mapstructure:"audit-webhook-batch-max-size"`
	AuditWebhookMaxWait    time.Duration `mapstructure:"audit-webhook-batch-max-wait"`
}

// StandardOutput is the AuditLogPath of standard output.
const StandardOutput = "-"

// The limits of AuditWebhookBufferSize, whose room is taken at the start, and of AuditWebhookMaxBatch.
const (
	maxAuditBuffer = 1_000_000
	maxAuditBatch  = 10_000
)

func (c Audit) validate() error {
	var errs []error
	if (c.AuditPolicyFile == "") != (c.AuditLogPath == "" && c.AuditWebhookConfig == "") {
		errs = append(errs,
			errors.New("audit-policy-file and audit-log-path or audit-webhook-config-file go together: give both, or neither"))
	}
	errs = append(errs, oneOf("audit-log-format", c.AuditLogFormat, "json", "legacy"))
	for _, o := range []struct {
		option             string
		value, least, most int
	}{
		{"audit-log-maxage", c.AuditLogMaxAge, 0, 36_500}, {"audit-log-maxbackup", c.AuditLogMaxBackup, 0, 1 << 30},
		{"audit-log-maxsize", c.AuditLogMaxSize, 0, 1 << 30},
		{"audit-webhook-batch-buffer-size", c.AuditWebhookBufferSize, 1, maxAuditBuffer},
		{"audit-webhook-batch-max-size", c.AuditWebhookMaxBatch, 1, maxAuditBatch},
	} {
		if o.value < o.least || o.value > o.most {
			errs = append(errs, fmt.Errorf("%s %d is not within %d to %d", o.option, o.value, o.least, o.most))
		}
	}
	for option, value := range map[string]time.Duration{
		"audit-webhook-initial-backoff": c.AuditWebhookInitialBackoff, "audit-webhook-batch-max-wait": c.AuditWebhookMaxWait,
	} {
		if value <= 0 || value > time.Hour {
			errs = append(errs, fmt.Errorf("%s %s is not within 1ns to 1h", option, value))
		}
	}
	return errors.Join(errs...)
}
