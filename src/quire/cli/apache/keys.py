"""What becomes of each key of Apache BookKeeper 4.17's `bk_server.conf`: the table.

`quire bookie start --bk-server-conf`, `quire bookie conf` and docs/from-apache-configuration.md are
made from it.
"""

from __future__ import annotations

from quire.cli.apache import rules
from quire.cli.apache.conf import ignored, refused
from quire.cli.apache.rules import (
    CLIENT_ONLY,
    NO_ENTRY_LOGGER,
    NO_JOURNAL,
    NO_JVM,
    NO_POOLS,
    NO_SERVICE,
    OLD_METADATA,
    Rule,
    always,
    boolean,
    implied_rule,
    interval_s,
    key,
    number,
    seconds_of_ms,
    skip,
    whole,
    words,
)

RULES: dict[str, Rule] = {}
GROUPS: dict[str, list[str]] = {}
"""The names of `RULES` by what they are about, for the document."""
PREFIXES: dict[str, Rule] = {
    "dbStorage_": skip(NO_ENTRY_LOGGER),
    "dlog.": skip(NO_SERVICE),
    "storage.": skip(NO_SERVICE),
    "storageserver.": skip(NO_SERVICE),
    "codahale": skip("metrics are served over HTTP, for Prometheus"),
    "prometheus": skip("metrics are served by the HTTP server: `--http`"),
    "allocator": skip(NO_JVM),
    "byteBufAllocator": skip(NO_JVM),
    "metastore": skip(OLD_METADATA),
}


def rule_of(name: str) -> Rule | None:
    if (rule := RULES.get(name)) is not None:
        return rule
    return next((rule for prefix, rule in PREFIXES.items() if name.startswith(prefix)), None)


def _add(rule: Rule, names: str) -> None:
    for name in names.split():
        assert name not in RULES, name
        RULES[name] = rule


def _identity() -> None:
    _add(key("bookie.port"), "bookiePort")
    _add(key("bookie.bookie_id"), "bookieId")
    _add(
        Rule("taken", "`bookie.advertise`. Without it: the address of this host", rules.advertised),
        "advertisedAddress",
    )
    _add(
        Rule("refused", "name the address with advertisedAddress, and --bind", rules.interface),
        "listeningInterface",
    )
    _add(
        implied_rule("says what is advertised, without advertisedAddress"),
        "useHostNameAsBookieID useShortHostName allowLoopback",
    )
    _add(skip("`--port 0` takes any free one"), "allowEphemeralPorts")
    _add(skip("every client comes by the network"), "enableLocalTransport")
    _add(
        always("it listens", refused("it would serve nobody: remove the key"), False),
        "disableServerSocketBind",
    )
    _add(skip("what fails ends the process at once"), "bookieDeathWatchInterval")
    _add(
        skip(NO_SERVICE),
        """
        extraServerComponents ignoreExtraServerComponentsStartupFailures
        """,
    )
    _add(Rule("implied", "checked at the start", rules.users), "permittedStartupUsers")


def _metadata() -> None:
    _add(key("metadata"), "metadataServiceUri")
    _add(Rule("taken", "`metadata`, without metadataServiceUri", rules.uri_from_parts), "zkServers")
    _add(
        Rule("implied", "a part of `metadata`, without metadataServiceUri", rules.part_of_uri),
        """
        zkLedgersRootPath ledgerManagerType ledgerManagerFactoryClass
        """,
    )
    _add(seconds_of_ms("bookie.session_timeout_s"), "zkTimeout")
    _add(
        Rule("implied", "`true`: refused: set QUIRE_ZOOKEEPER_AUTH_FILE", rules.zookeeper_acls),
        "zkEnableSecurity",
    )
    _add(
        skip("lost connections are made again, within the session"),
        """
        zkRetryBackoffStartMs zkRetryBackoffMaxMs zkRetryBackoffMaxRetries
        """,
    )
    _add(
        skip("requests to ZooKeeper are bounded by what is under way"),
        """
        zkRequestRateLimit zkReplicationTaskRateLimit gcMetadataOpRateLimit
        """,
    )
    _add(
        skip(OLD_METADATA),
        """
        registrationManagerClass ledgerManagerFactoryDisableClassCheck
        allowShadedLedgerManagerFactoryClass shadedLedgerManagerFactoryClassPrefix
        """,
    )
    _add(
        Rule("taken", "`client.ledger_metadata_version`", rules.explicit_version),
        "ledgerMetadataVersion",
    )


def _journal() -> None:
    _add(
        always("an entry is acknowledged when it is on the disk", refused(rules.NOT_DURABLE)),
        "journalSyncData journalWriteData",
    )
    _add(
        skip(NO_JOURNAL),
        """
        journalDirectory journalDirectories journalFormatVersionToWrite journalMaxSizeMB
        journalMaxBackups journalPreAllocSizeMB journalReuseFiles journalWriteBufferSizeKB
        journalRemoveFromPageCache journalAlignmentSize journalMaxMemorySizeMb
        journalPageCacheFlushIntervalMSec journalChannelProvider numJournalCallbackThreads
        """,
    )
    _add(
        always(
            "a damaged entry is never taken for one that is not there",
            refused("Quire does not skip what is damaged: remove the key"),
            False,
        ),
        "skipReplayJournalInvalidRecord",
    )
    _add(
        skip("groups form by themselves: all that waits is written with one sync"),
        """
        journalAdaptiveGroupWrites journalMaxGroupWaitMSec journalBufferedWritesThreshold
        journalBufferedEntriesThreshold journalFlushWhenQueueEmpty
        """,
    )
    _add(skip("bounded in bytes: `bookie.max_queued_bytes`"), "journalQueueSize")


def _storage() -> None:
    _add(
        key("bookie.directories", words, "empty ones: Apache's files are not read"),
        "ledgerDirectories",
    )
    _add(skip("the index is in the segments"), "indexDirectories")
    _add(
        skip("allowed; two directories on one disk protect from nothing"),
        "allowMultipleDirsUnderSameDiskPartition",
    )
    _add(implied_rule("a further directory is taken in at the next start"), "allowStorageExpansion")
    _add(skip("segments are preallocated, and smaller: `bookie.segment_bytes`"), "logSizeLimit")
    _add(implied_rule("segments are preallocated"), "entryLogFilePreallocationEnabled")
    _add(
        skip(NO_ENTRY_LOGGER),
        """
        ledgerStorageClass sortedLedgerStorageEnabled flushInterval flushEntrylogBytes
        readBufferSizeBytes writeBufferSizeBytes entryLogPerLedgerEnabled
        numOfMemtableFlushThreads entrylogMapAccessExpiryTimeInSeconds
        maximumNumberOfActiveEntryLogs entryLogPerLedgerCounterLimitsMultFactor
        skipListSizeLimit skipListArenaChunkSize skipListArenaMaxAllocSize openFileLimit
        fileInfoCacheInitialCapacity fileInfoMaxIdleTime fileInfoFormatVersionToWrite
        pageSize pageLimit entryLocationRocksdbConf ledgerMetadataRocksdbConf
        defaultRocksdbConf maxOperationNumbersInSingleRocksdbWriteBatch
        entryLocationCompactionInterval
        """,
    )
    _add(
        skip("what fences and recovery need is preallocated"),
        """
        minUsableSizeForEntryLogCreation minUsableSizeForIndexFileCreation
        minUsableSizeForHighPriorityWrites
        """,
    )
    _add(
        Rule(
            "taken",
            "`bookie.min_free_bytes`: the rest of the smallest disk",
            rules.disk_threshold("bookie.min_free_bytes"),
        ),
        "diskUsageThreshold",
    )
    _add(
        Rule(
            "taken",
            "`bookie.writable_free_bytes`: the rest of the smallest disk",
            rules.low_water_threshold,
        ),
        "diskUsageLwmThreshold",
    )
    _add(skip("nothing warns before `bookie.min_free_bytes`"), "diskUsageWarnThreshold")
    _add(seconds_of_ms("bookie.check_space_s"), "diskCheckInterval")
    _add(
        always(
            "a full bookie becomes read-only, and comes back", ignored("a full bookie does not end")
        ),
        "readOnlyModeEnabled",
    )
    _add(
        skip("of several directories those with room take entries"),
        "readOnlyModeOnAnyDiskFullEnabled",
    )
    _add(
        always("it starts as the disk allows", refused(rules.NO_READ_ONLY), False),
        "forceReadOnlyBookie",
    )
    _add(skip("the state follows from the disk"), "persistBookieStatusEnabled")


def _garbage() -> None:
    _add(seconds_of_ms("bookie.gc_interval_s"), "gcWaitTime")
    _add(
        seconds_of_ms("bookie.gc_over_replicated_interval_s", "0 and less: never"),
        "gcOverreplicatedLedgerWaitTime",
    )
    _compaction()
    _add(
        implied_rule("a ledger is dropped after its metadata was read and is not there"),
        "verifyMetadataOnGC",
    )
    _add(
        skip("the index of the segments says what is alive"),
        """
        gcEntryLogMetadataCacheEnabled gcEntryLogMetadataCachePath
        useTargetEntryLogSizeForGc
        """,
    )
    _add(
        skip("they are looked at one after the other"),
        "gcOverreplicatedLedgerMaxConcurrentRequests",
    )
    _add(interval_s("bookie.scrub_interval_s"), "localScrubInterval")
    _add(skip("the rate is in bytes: `bookie.scrub_bytes_per_s`"), "localScrubRateLimit")
    _add(implied_rule("every start checks the log"), "localConsistencyCheckOnStartup")
    _add(
        skip("a directory without its cookie is refused; see `quire bookie cookie`"),
        "dataIntegrityChecking dataIntegrityStampMissingCookies",
    )


def _compaction() -> None:
    for which in ("minor", "major"):
        _add(
            Rule(
                "taken",
                f"`bookie.compact_{which}_interval_s`; 0: never",
                rules.compaction_interval(which),
            ),
            f"{which}CompactionInterval",
        )
        _add(
            Rule(
                "taken",
                f"`bookie.compact_{which}_ratio`; 0: never",
                rules.compaction_threshold(which),
            ),
            f"{which}CompactionThreshold",
        )
        _add(
            skip("a compaction goes one segment at a time, and may be interrupted"),
            f"{which}CompactionMaxTimeMillis",
        )
    _add(
        Rule("taken", "`bookie.compact_bytes_per_s`, if isThrottleByBytes", rules.compaction_rate),
        "compactionRateByBytes",
    )
    _add(
        skip("the rate is in bytes: `bookie.compact_bytes_per_s`"),
        """
        isThrottleByBytes compactionRate compactionRateByEntries
        compactionMaxOutstandingRequests
        """,
    )
    _add(
        implied_rule("a full disk is compacted at once, with room that was kept for it"),
        "forceAllowCompaction isForceGCAllowWhenNoSpace",
    )
    _add(
        implied_rule("a compacted file takes the place of the old one by one rename"),
        "useTransactionalCompaction",
    )


def _network() -> None:
    _add(key("bookie.max_frame_bytes", whole), "nettyMaxFrameSizeBytes")
    _add(key("bookie.max_batch_read_bytes", whole), "maxBatchReadSize")
    _add(
        skip(NO_POOLS),
        """
        numAddWorkerThreads numReadWorkerThreads numLongPollWorkerThreads
        numHighPriorityWorkerThreads maxPendingReadRequestsPerThread
        maxPendingAddRequestsPerThread maxAddsInProgressLimit maxReadsInProgressLimit
        readWorkerThreadsThrottlingEnabled serverNumIOThreads serverNumAcceptorThreads
        enableBusyWait requestTimerTickDurationMs requestTimerNumTicks
        """,
    )
    _add(
        skip("a connection that takes no answers is not read: `bookie.max_unsent_bytes`"),
        """
        serverWriteBufferLowWaterMark serverWriteBufferHighWaterMark
        closeChannelOnResponseTimeout waitTimeoutOnResponseBackpressureMs
        """,
    )
    _add(implied_rule("answers are sent at once"), "serverTcpNoDelay")
    _add(
        skip("of the operating system"),
        """
        serverSockKeepalive serverTcpLinger serverTcpKeepIdle serverTcpKeepIntvl
        serverTcpKeepCnt
        """,
    )


def _security() -> None:
    _add(
        Rule("implied", "TLS, with files in PEM. Key stores of Java: refused", rules.tls_factory),
        "tlsProviderFactoryClass",
    )
    _add(skip("Python's TLS"), "tlsProvider tlsEnabledCipherSuites tlsEnabledProtocols")
    _add(
        skip("PEM; see tlsProviderFactoryClass"),
        "tlsKeyStoreType tlsTrustStoreType tlsTrustStorePasswordPath",
    )
    for name, ours in rules.TLS_FILES.items():
        _add(Rule("taken", f"`bookie.tls.{ours}`, if TLS is on", rules.tls(ours)), name)
    _add(
        Rule("taken", "`bookie.tls.client_certificates`: `required` or `none`", rules.tls_clients),
        "tlsClientAuthentication",
    )
    _add(
        Rule("taken", "`bookie.tls.reload_check_s`; 0 is ignored", rules.tls_refresh),
        "tlsCertFilesRefreshDurationSeconds",
    )
    _add(
        Rule("taken", "BookieAuthZFactory: `bookie.tls_required`. Others: refused", rules.auth),
        "bookieAuthProviderFactoryClass",
    )
    _add(
        Rule("taken", "`bookie.authorized_roles`, with BookieAuthZFactory", rules.roles),
        "authorizedRoles",
    )


def _watching() -> None:
    _add(
        Rule("taken", f"`bookie.http`, on loopback; {rules.NO_HTTP}", rules.http_enabled),
        "httpServerEnabled",
    )
    _add(implied_rule(rules.PART_OF_HTTP), "httpServerHost httpServerPort")
    _add(
        skip(rules.NO_HTTP),
        """
        httpServerClass httpServerTlsEnable httpServerKeyStorePath httpServerKeyStorePassword
        httpServerTrustStorePath httpServerTrustStorePassword enableHealthCheck
        """,
    )
    _add(
        skip("metrics are always counted, and served by the HTTP server: `--http`"),
        """
        enableStatistics statsProviderClass sanityCheckMetricsEnabled
        enableTaskExecutionStats exposeDefaultJVMMetrics limitStatsLogging
        preserveMdcForTaskExecution
        """,
    )
    _add(
        skip("of Apache's command line; see `quire ledger`"),
        "ledgerIdFormatterClass entryFormatterClass",
    )


def _autorecovery() -> None:
    _add(key("bookie.autorecovery", boolean), "autoRecoveryDaemonEnabled")
    _add(interval_s("autorecovery.bookie_check_interval_s"), "auditorPeriodicBookieCheckInterval")
    _add(interval_s("autorecovery.ledger_check_interval_s"), "auditorPeriodicCheckInterval")
    _add(key("autorecovery.ledger_check_percent", number), "auditorLedgerVerificationPercentage")
    _add(interval_s("autorecovery.replicas_check_interval_s"), "auditorReplicasCheckInterval")
    _add(
        interval_s("autorecovery.placement_check_interval_s"),
        "auditorPeriodicPlacementPolicyCheckInterval",
    )
    _add(key("autorecovery.lost_bookie_delay_s", whole), "lostBookieRecoveryDelay")
    _add(seconds_of_ms("autorecovery.open_grace_s"), "openLedgerRereplicationGracePeriod")
    _add(seconds_of_ms("autorecovery.backoff_s"), "rwRereplicateBackoffMs")
    _add(seconds_of_ms("autorecovery.backoff_max_s"), "lockReleaseOfFailedLedgerGracePeriod")
    _add(
        Rule("taken", "`autorecovery.bytes_per_s`; 0 and less: no bound", rules.bytes_per_s),
        "replicationRateByBytes",
    )
    _add(
        skip("the rate is in bytes: `autorecovery.bytes_per_s`"),
        """
        rereplicationEntryBatchSize auditorMaxNumberOfConcurrentOpenLedgerOperations
        auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec
        inFlightReadEntryNumInLedgerChecker
        """,
    )
    _add(
        implied_rule("marks have the time of their making"),
        """
        storeSystemTimeAsLedgerUnderreplicatedMarkTime storeSystemTimeAsLedgerCreationTime
        """,
    )
    _add(
        skip("how long ledgers have waited is in `quire autorecovery list`"),
        "underreplicatedLedgerRecoveryGracePeriod",
    )
    _add(
        skip("misplaced ledgers are counted; `quire cluster rebalance` moves entries"),
        "repairedPlacementPolicyNotAdheringBookieEnabled",
    )
    _add(
        skip("a ledger's metadata has its digest and its password"),
        "digestType passwd enableDigestTypeAutodetection",
    )
    _add(
        skip(CLIENT_ONLY),
        """
        stickyReadSEnabled reorderReadSequenceEnabled bookieAddressResolverEnabled
        """,
    )


def _placement() -> None:
    _add(
        Rule("taken", "`client.placement.policy`; a class of your own: refused", rules.policy),
        "ensemblePlacementPolicy",
    )
    _add(
        Rule(
            "implied",
            "by the key of its file; Pulsar's: `client.placement.locations` = `metadata`",
            rules.resolver,
        ),
        "reppDnsResolverClass",
    )
    place = "client.placement."
    _add(
        key(place + "locations", lambda text: f"script:{text}", "`script:FILE`"),
        "networkTopologyScriptFileName",
    )
    _add(
        key(place + "locations", lambda text: f"table:{text}", "`table:FILE`"),
        "networkTopologyTableFileName",
    )
    _add(key(place + "script_names_max", whole), "networkTopologyScriptNumberArgs")
    _add(key(place + "min_racks", whole), "minNumRacksPerWriteQuorum")
    _add(key(place + "enforce_racks", boolean), "enforceMinNumRacksPerWriteQuorum")
    _add(key(place + "min_zones", whole), "minNumZonesPerWriteQuorum")
    _add(key(place + "desired_zones", whole), "desiredNumZonesPerWriteQuorum")
    _add(key(place + "strict_zones", boolean), "enforceStrictZoneawarePlacement")
    _add(key(place + "spread_acks", boolean), "enforceMinNumFaultDomainsForWrite")
    _add(
        skip("set `client.placement.own_location` to '' (the default) for that"),
        "ignoreLocalNodeInPlacementPolicy",
    )
    _add(key(place + "disk_weighted", boolean), "diskWeightBasedPlacementEnabled")
    _add(key(place + "weight_multiple_max", number), "bookieMaxMultipleForWeightBasedPlacement")
    _add(key(place + "weight_refresh_s", number), "getBookieInfoIntervalSeconds")


for _title, _fill in {
    "The bookie": _identity,
    "Metadata": _metadata,
    "Journal": _journal,
    "Storage": _storage,
    "Garbage collection, compaction, scrub": _garbage,
    "Network": _network,
    "Security": _security,
    "HTTP and metrics": _watching,
    "Autorecovery": _autorecovery,
    "Placement": _placement,
}.items():
    _before = len(RULES)
    _fill()
    GROUPS[_title] = list(RULES)[_before:]
