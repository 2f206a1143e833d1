package v1alpha1

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Audit configures auditing of the API. It is disabled if AuditLogPath and AuditWebhookConfig are empty. Names and
// meaning are upstream's.
type Audit struct {
	// AuditPolicyFile is the absolute path of an audit.k8s.io/v1 Policy. It must be set if, and only if, the log or
	// the webhook is.
	AuditPolicyFile string
	// AuditLogPath is the absolute path of the log file, or StandardOutput. AuditLogFormat is json, one object per
	// line, or legacy.
	AuditLogPath   string
	AuditLogFormat string
	// AuditLogMaxAge is the maximum age in days, and AuditLogMaxBackup the maximum number, of rotated files. 0
	// means no limit.
	AuditLogMaxAge    int
	AuditLogMaxBackup int
	// AuditLogMaxSize is the size in MiB at which the file is rotated; 0 means 100. AuditLogCompress compresses
	// rotated files.
	AuditLogMaxSize  int
	AuditLogCompress bool
	// AuditWebhookConfig is the absolute path of a kubeconfig for the server that receives events.
	AuditWebhookConfig string
	// AuditWebhookInitialBackoff is the delay before a failed request is repeated. It grows by half with each
	// attempt, up to the fifth.
	AuditWebhookInitialBackoff time.Duration
	// AuditWebhookBufferSize is the maximum number of waiting events, AuditWebhookMaxBatch the maximum number in a
	// request, and AuditWebhookMaxWait how long a batch waits for more events.
	AuditWebhookBufferSize int
	AuditWebhookMaxBatch   int
	AuditWebhookMaxWait    time.Duration
}

// StandardOutput is the AuditLogPath of standard output.
const StandardOutput = "-"

// Upper bounds of AuditWebhookBufferSize, whose memory is allocated at the start, and of AuditWebhookMaxBatch.
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
