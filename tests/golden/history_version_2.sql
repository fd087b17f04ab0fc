PRAGMA application_id = 1667985524;
PRAGMA user_version = 2;
BEGIN TRANSACTION;
CREATE TABLE gpu_time (
        node TEXT NOT NULL,
        uuid TEXT NOT NULL,
        hour_unix INTEGER NOT NULL,
        gpu INTEGER NOT NULL,
        observed_seconds REAL NOT NULL,
        stall_checkpoint_save_seconds REAL NOT NULL,
        stall_checkpoint_load_seconds REAL NOT NULL,
        stall_data_loading_seconds REAL NOT NULL,
        stall_communication_seconds REAL NOT NULL,
        stall_other_seconds REAL NOT NULL,
        PRIMARY KEY (node, uuid, hour_unix)
    ) WITHOUT ROWID
    ;
INSERT INTO "gpu_time" VALUES('n1','GPU-a',1764460800,0,3600.0,0.0,0.0,12.5,0.0,0.0);
INSERT INTO "gpu_time" VALUES('n1','GPU-b',1764460800,1,3500.0,0.0,0.0,0.0,0.0,0.0);
CREATE TABLE loads (
        id INTEGER PRIMARY KEY,
        node TEXT NOT NULL,
        directory TEXT NOT NULL,
        path TEXT NOT NULL,
        layout TEXT NOT NULL,
        step INTEGER,
        run TEXT,
        readers INTEGER,
        start_unix REAL NOT NULL,
        end_unix REAL NOT NULL,
        duration_seconds REAL NOT NULL,
        bytes INTEGER NOT NULL,
        files INTEGER NOT NULL,
        cached_ratio REAL,
        notes TEXT NOT NULL
    );
INSERT INTO "loads" VALUES(1,'n1','llama','/data/llama/日本\xff''; --','huggingface',100,'pretrain',8,1764460810.0,1764460830.5,20.5,8000000000,4,0.25,'["mapped"]');
CREATE TABLE saves (
        id INTEGER PRIMARY KEY,
        node TEXT NOT NULL,
        directory TEXT NOT NULL,
        path TEXT NOT NULL,
        layout TEXT NOT NULL,
        step INTEGER,
        result TEXT NOT NULL,
        reason TEXT,
        start_unix REAL NOT NULL,
        end_unix REAL NOT NULL,
        duration_seconds REAL,
        active_seconds REAL,
        bytes INTEGER NOT NULL,
        written_bytes INTEGER,
        files INTEGER NOT NULL,
        average_bandwidth REAL,
        sustained_bandwidth REAL,
        peak_bandwidth REAL,
        run TEXT,
        run_id TEXT,
        scheduler TEXT,
        mountpoint TEXT,
        device TEXT,
        fstype TEXT,
        transport TEXT,
        bubble_seconds REAL,
        bubble_before_write_seconds REAL,
        bubble_writing_seconds REAL,
        bubble_write_gap_seconds REAL,
        bubble_after_write_seconds REAL,
        bubble_gpu_seconds TEXT NOT NULL,
        drag_gpu_seconds TEXT NOT NULL,
        bubble_skipped TEXT,
        dip_start_unix REAL,
        dip_end_unix REAL,
        depth REAL,
        source TEXT,
        quality TEXT,
        notes TEXT NOT NULL,
        shards TEXT NOT NULL
    );
INSERT INTO "saves" VALUES(1,'n1','llama','/data/llama/checkpoint-100','huggingface',100,'complete',NULL,1764460800.25,1764460900.25,100.0,80.0,8000000000,8100000000,4,80000000.0,100000000.0,250000000.0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'{}','{}',NULL,NULL,NULL,NULL,NULL,NULL,'[]','[]');
INSERT INTO "saves" VALUES(2,'n1','llama','/data/llama/日本\xff''; DROP TABLE saves; --','huggingface',100,'complete',NULL,1764460800.25,1764460900.25,100.0,80.0,8000000000,8100000000,4,80000000.0,100000000.0,250000000.0,'pretrain','4711','slurm','/data','nvme0n1p1','ext4','nvme-pcie',105.5,5.0,90.0,4.5,6.0,'{"0":105.0,"1":106.0}','{"1":0.5}',NULL,1764460795.0,1764460906.0,0.95,'power','high','["copy","reconciled"]','[["rank0.bin",4000000000,1764460801.0,1764460890.0],["rank1.bin",4000000000,null,1764460900.125]]');
CREATE TABLE stalls (
        id INTEGER PRIMARY KEY,
        node TEXT NOT NULL,
        gpu INTEGER NOT NULL,
        uuid TEXT,
        start_unix REAL NOT NULL,
        end_unix REAL NOT NULL,
        seconds REAL NOT NULL,
        cause TEXT NOT NULL
    );
INSERT INTO "stalls" VALUES(1,'n1',3,'GPU-x',1764460840.0,1764460844.0,3.5,'data_loading');
CREATE INDEX saves_by_end ON saves (end_unix);
CREATE INDEX loads_by_end ON loads (end_unix);
CREATE INDEX stalls_by_end ON stalls (end_unix);
COMMIT;
