package v1alpha1

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Audit configures the audit of the API, which is disabled without AuditLogPath and AuditWebhookConfig. Names and
// meaning are upstream's.
type Audit struct {
	// AuditPolicyFile is the absolute path of an audit.k8s.io/v1 Policy. Log and webhook require it, and it requires
	// one of them.
	AuditPolicyFile string
	// AuditLogPath is the absolute path of the file to write, or StandardOutput; AuditLogFormat is json, an object per
	// line, or legacy.
	AuditLogPath   string
	AuditLogFormat string
	// AuditLogMaxAge is the age in days, and AuditLogMaxBackup the number, of rotated files to retain; 0 retains all.
	AuditLogMaxAge    int
	AuditLogMaxBackup int
	// AuditLogMaxSize is the size in MiB at which the file is rotated; 0 means 100. AuditLogCompress compresses rotated
	// files.
	AuditLogMaxSize  int
	AuditLogCompress bool
	// AuditWebhookConfig is the absolute path of a kubeconfig for a server that is sent events.
	AuditWebhookConfig string
	// AuditWebhookInitialBackoff is how long after a failure they are sent again; it grows by half until the fifth
	// attempt.
	AuditWebhookInitialBackoff time.Duration
	// AuditWebhookBufferSize limits the waiting events, AuditWebhookMaxBatch the events of a request, and
	// AuditWebhookMaxWait how long a batch waits for more events.
	AuditWebhookBufferSize int
	AuditWebhookMaxBatch   int
	AuditWebhookMaxWait    time.Duration
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

func (c *Audit) options(f *pflag.FlagSet) {
	f.StringVar(&c.AuditPolicyFile, "audit-policy-file", "",
		"audit policy (audit.k8s.io/v1); with --audit-log-path or --audit-webhook-config-file")
	f.StringVar(&c.AuditLogPath, "audit-log-path", "", "file for audit events; - is standard output")
	f.StringVar(&c.AuditLogFormat, "audit-log-format", "json",
		"json, an object per line, or legacy, a line of text per event")
	f.IntVar(&c.AuditLogMaxAge, "audit-log-maxage", 366, "days to retain rotated audit logs; 0 means forever")
	f.IntVar(&c.AuditLogMaxBackup, "audit-log-maxbackup", 100, "number of rotated audit logs to retain; 0 means all")
	f.IntVar(&c.AuditLogMaxSize, "audit-log-maxsize", 100, "size in MiB at which the audit log is rotated; 0 means 100")
	f.BoolVar(&c.AuditLogCompress, "audit-log-compress", false, "compress rotated audit logs with gzip")
	f.StringVar(&c.AuditWebhookConfig, "audit-webhook-config-file", "",
		"kubeconfig of a server that receives audit events in batches; requests never wait for it")
	f.DurationVar(&c.AuditWebhookInitialBackoff, "audit-webhook-initial-backoff", 10*time.Second,
		"delay before a failed batch is sent again; it grows by half until the fifth attempt")
	f.IntVar(&c.AuditWebhookBufferSize, "audit-webhook-batch-buffer-size", 10_000,
		"maximum number of events that wait for the webhook, in at most 32 MiB; further ones are dropped and counted")
	f.IntVar(&c.AuditWebhookMaxBatch, "audit-webhook-batch-max-size", 400, "maximum number of events of a batch")
	f.DurationVar(&c.AuditWebhookMaxWait, "audit-webhook-batch-max-wait", 30*time.Second,
		"how long a batch waits to be full")
}
